package main

import (
	"context"
	"fmt"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const (
	patience = 30 * time.Second
	// How long nothing may arrive when nothing should.
	quiet = 500 * time.Millisecond
)

// A check did not find what it has to: panics end a check, and `run` reports them.
type failed string

// One check's view of the service: the topic belongs to the check alone.
type scene struct {
	client pulsar.Client
	topic  string
	keyed  bool
	open   []interface{ Close() }
}

// A message, and when it came.
type received struct {
	text    string
	at      time.Time
	count   uint32
	message pulsar.Message
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(failed(err.Error()))
	}
}

func same(found, wanted any, what string) {
	if !reflect.DeepEqual(found, wanted) {
		panic(failed(fmt.Sprintf("%s: %v, not %v", what, found, wanted)))
	}
}

// A consumer from the start of the topic, which asks soon for what it refused; `change` may be nil.
func (s *scene) subscribe(change func(*pulsar.ConsumerOptions)) pulsar.Consumer {
	options := pulsar.ConsumerOptions{
		Topic:                       s.topic,
		SubscriptionName:            "s",
		Type:                        pulsar.Shared,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		NackRedeliveryDelay:         100 * time.Millisecond,
	}
	if s.keyed {
		options.Type = pulsar.KeyShared
	}
	if change != nil {
		change(&options)
	}
	consumer := must(s.client.Subscribe(options))
	s.open = append(s.open, consumer)
	return consumer
}

func on(topic, subscription string) func(*pulsar.ConsumerOptions) {
	return func(options *pulsar.ConsumerOptions) { options.Topic, options.SubscriptionName = topic, subscription }
}

func (s *scene) producer(options pulsar.ProducerOptions) pulsar.Producer {
	if options.Topic == "" {
		options.Topic = s.topic
	}
	if s.keyed {
		options.BatcherBuilderType = pulsar.KeyBasedBatchBuilder
	}
	producer := must(s.client.CreateProducer(options))
	s.open = append(s.open, producer)
	return producer
}

// Each with its text as its key, all stored when this returns.
func (s *scene) send(topic string, texts []string, after time.Duration) {
	producer := s.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	for _, text := range texts {
		sendOne(producer, &pulsar.ProducerMessage{Payload: []byte(text), Key: text, DeliverAfter: after})
	}
}

func sendOne(producer pulsar.Producer, message *pulsar.ProducerMessage) pulsar.MessageID {
	return must(producer.Send(context.Background(), message))
}

func sendAsync(producer pulsar.Producer, text, key string) {
	message := &pulsar.ProducerMessage{Payload: []byte(text), Key: key}
	producer.SendAsync(context.Background(), message, func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
}

func (s *scene) close() {
	for _, each := range s.open {
		each.Close()
	}
}

func numbered(word string, count int) []string {
	found := []string{}
	for number := range count {
		found = append(found, fmt.Sprintf("%s-%d", word, number))
	}
	return found
}

// The next message, or none within the time.
func receive(consumer pulsar.Consumer, within time.Duration) (received, bool) {
	deadline, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	message, err := consumer.Receive(deadline)
	if err != nil {
		if deadline.Err() != nil {
			return received{}, false
		}
		panic(failed(err.Error()))
	}
	return received{string(message.Payload()), time.Now(), message.RedeliveryCount(), message}, true
}

func drainUnacked(consumer pulsar.Consumer, count int) []received {
	found := []received{}
	for len(found) < count {
		one, came := receive(consumer, patience)
		if !came {
			panic(failed(fmt.Sprintf("%d of %d came: %v", len(found), count, texts(found))))
		}
		found = append(found, one)
	}
	return found
}

func drain(consumer pulsar.Consumer, count int) []received {
	found := []received{}
	for range count {
		one := drainUnacked(consumer, 1)[0]
		check(consumer.Ack(one.message))
		found = append(found, one)
	}
	return found
}

// Whatever comes until nothing comes for a while.
func drainAll(consumer pulsar.Consumer, within time.Duration) []received {
	found := []received{}
	for {
		one, came := receive(consumer, within)
		if !came {
			return found
		}
		check(consumer.Ack(one.message))
		found = append(found, one)
	}
}

func expectQuiet(consumers ...pulsar.Consumer) {
	for _, consumer := range consumers {
		same(texts(drainAll(consumer, quiet)), []string{}, "messages after the last")
	}
}

func texts(all []received) []string {
	found := []string{}
	for _, each := range all {
		found = append(found, each.text)
	}
	sort.Strings(found)
	return found
}

// The same messages, each once, in any order.
func sameTexts(all []received, wanted []string, what string) {
	sorted := append([]string{}, wanted...)
	sort.Strings(sorted)
	same(texts(all), sorted, what)
}

// Redelivery counts of each message, in the order in which they came.
func counts(all []received) string {
	found, order := map[string][]string{}, []string{}
	for _, each := range all {
		if found[each.text] == nil {
			order = append(order, each.text)
		}
		found[each.text] = append(found[each.text], fmt.Sprint(each.count))
	}
	sort.Strings(order)
	lines := []string{}
	for _, text := range order {
		lines = append(lines, text+":"+strings.Join(found[text], "/"))
	}
	return strings.Join(lines, " ")
}
