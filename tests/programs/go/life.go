package main

import (
	"context"
	"regexp"
	"sort"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// The start of the topic: this client refuses its own EarliestMessageID here, for its partition -1.
var start = pulsar.NewMessageID(-1, -1, -1, 0)

func seekEarliest(s *scene) string {
	consumer := s.subscribe(nil)
	s.send("", numbered("m", 10), 0)
	drain(consumer, 10)
	check(consumer.Seek(start))
	sameTexts(drain(consumer, 10), numbered("m", 10), "again")
	expectQuiet(consumer)
	return ""
}

func seekTime(s *scene) string {
	consumer := s.subscribe(nil)
	s.send("", numbered("before", 5), 0)
	time.Sleep(100 * time.Millisecond)
	between := time.Now()
	time.Sleep(100 * time.Millisecond)
	s.send("", numbered("after", 5), 0)
	drain(consumer, 10)
	check(consumer.SeekByTime(between))
	sameTexts(drain(consumer, 5), numbered("after", 5), "again")
	expectQuiet(consumer)
	return ""
}

// Whether the message that is sought comes itself is for the broker to say.
func seekID(s *scene) string {
	consumer := s.subscribe(nil)
	s.send("", numbered("m", 10), 0)
	var sought pulsar.MessageID
	for _, each := range drain(consumer, 10) {
		if each.text == "m-5" {
			sought = each.message.ID()
		}
	}
	check(consumer.Seek(sought))
	again := append(drain(consumer, 4), drainAll(consumer, quiet)...)
	return strings.Join(texts(again), " ")
}

// Back to the start while some are delayed: these come once, at their time.
func seekOverDelayed(s *scene) string {
	consumer := s.subscribe(nil)
	s.send("", numbered("now", 5), 0)
	due := time.Now().Add(4000 * time.Millisecond)
	s.send("", numbered("later", 5), 4000*time.Millisecond)
	drain(consumer, 5)
	check(consumer.Seek(start))
	all := drain(consumer, 10)
	sameTexts(all[:5], numbered("now", 5), "again")
	sameTexts(all[5:], numbered("later", 5), "later")
	same(all[5].at.Before(due.Add(-tick)), false, "before its time")
	expectQuiet(consumer)
	return ""
}

func unsubscribe(s *scene) string {
	consumer := s.subscribe(nil)
	s.send("", numbered("m", 10), 0)
	s.send("", numbered("later", 3), 2*time.Second)
	drain(consumer, 10)
	check(consumer.Unsubscribe())
	consumer = s.subscribe(nil)
	sameTexts(drain(consumer, 13), append(numbered("m", 10), numbered("later", 3)...), "again")
	expectQuiet(consumer)
	return ""
}

func initialPosition(s *scene) string {
	s.send("", numbered("old", 5), 0)
	early := s.subscribe(on(s.topic, "early"))
	late := s.subscribe(func(options *pulsar.ConsumerOptions) {
		options.SubscriptionName = "late"
		options.SubscriptionInitialPosition = pulsar.SubscriptionPositionLatest
	})
	s.send("", numbered("new", 5), 0)
	sameTexts(drain(early, 10), append(numbered("old", 5), numbered("new", 5)...), "from earliest")
	sameTexts(drain(late, 5), numbered("new", 5), "from latest")
	expectQuiet(early, late)
	return ""
}

// Whoever runs this has made the topic, with three partitions.
func partitioned(s *scene) string {
	consumer := s.subscribe(nil)
	s.send("", numbered("now", 30), 0)
	s.send("", numbered("later", 30), time.Second)
	all := drain(consumer, 60)
	sameTexts(all, append(numbered("now", 30), numbered("later", 30)...), "received")
	expectQuiet(consumer)
	seen := map[string]bool{}
	for _, each := range all {
		seen[each.message.Topic()[len(s.topic):]] = true
	}
	names := []string{}
	for name := range seen {
		names = append(names, name)
	}
	sort.Strings(names)
	return strings.Join(names, " ")
}

func twoTopics(s *scene, change func(*pulsar.ConsumerOptions)) string {
	first, second := s.topic+"-a", s.topic+"-b"
	s.send(first, []string{"a-before"}, 0)
	s.send(second, []string{"b-before"}, 0)
	consumer := s.subscribe(change)
	s.send(first, []string{"a-later"}, time.Second)
	s.send(second, []string{"b-after"}, 0)
	sameTexts(drain(consumer, 4), []string{"a-before", "b-before", "a-later", "b-after"}, "received")
	expectQuiet(consumer)
	return ""
}

func severalTopics(s *scene) string {
	return twoTopics(s, func(options *pulsar.ConsumerOptions) {
		options.Topic, options.Topics = "", []string{s.topic + "-a", s.topic + "-b"}
	})
}

func pattern(s *scene) string {
	return twoTopics(s, func(options *pulsar.ConsumerOptions) {
		options.Topic, options.TopicsPattern = "", regexp.QuoteMeta(s.topic)+"-.*"
	})
}

// Beside a subscription that the bridge dispatches.
func reader(s *scene) string {
	consumer := s.subscribe(nil)
	producer := s.producer(pulsar.ProducerOptions{DisableBatching: true})
	var last pulsar.MessageID
	for _, text := range numbered("m", 10) {
		last = sendOne(producer, &pulsar.ProducerMessage{Payload: []byte(text), Key: text})
	}
	found := must(s.client.CreateReader(pulsar.ReaderOptions{
		Topic: s.topic, StartMessageID: pulsar.EarliestMessageID(),
	}))
	s.open = append(s.open, found)
	read := []string{}
	for found.HasNext() {
		read = append(read, string(must(found.Next(context.Background())).Payload()))
	}
	same(read, numbered("m", 10), "read")
	at := func(id pulsar.MessageID) [2]int64 { return [2]int64{id.LedgerID(), id.EntryID()} }
	same(at(must(found.GetLastMessageID())), at(last), "last message id of the reader")
	same(at(must(consumer.GetLastMessageIDs())[0]), at(last), "last message id of the consumer")
	return ""
}
