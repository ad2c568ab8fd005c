package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// How much too early the broker's own tracker may be.
const tick = time.Second

func immediate(s *scene) string {
	consumer := s.subscribe(nil)
	s.send("", numbered("now", 20), 0)
	sameTexts(drain(consumer, 20), numbered("now", 20), "received")
	expectQuiet(consumer)
	return ""
}

// Each once, the immediate ones first, and none of the others more than `early` before its time.
func deliverLater(s *scene, early time.Duration) string {
	consumer := s.subscribe(nil)
	producer := s.producer(pulsar.ProducerOptions{})
	due := map[string]time.Time{}
	for _, text := range numbered("after", 5) {
		due[text] = time.Now().Truncate(time.Millisecond).Add(4000 * time.Millisecond)
		message := &pulsar.ProducerMessage{Payload: []byte(text), Key: text, DeliverAfter: 4000 * time.Millisecond}
		sendOne(producer, message)
	}
	at := time.Now().Truncate(time.Millisecond).Add(5000 * time.Millisecond)
	for _, text := range numbered("at", 5) {
		due[text] = at
		sendOne(producer, &pulsar.ProducerMessage{Payload: []byte(text), Key: text, DeliverAt: at})
	}
	s.send("", numbered("now", 5), 0)
	all := drain(consumer, 15)
	sameTexts(all[:5], numbered("now", 5), "first")
	sameTexts(all[5:], append(numbered("after", 5), numbered("at", 5)...), "later")
	for _, each := range all[5:] {
		if each.at.Before(due[each.text].Add(-early)) {
			panic(failed(fmt.Sprintf("%s before its time, by %v", each.text, due[each.text].Sub(each.at))))
		}
	}
	expectQuiet(consumer)
	return ""
}

func delayed(s *scene) string { return deliverLater(s, tick) }

func neverEarly(s *scene) string { return deliverLater(s, 0) }

// A consumer that comes when all is due already.
func delayedBacklog(s *scene) string {
	s.subscribe(nil).Close()
	s.send("", numbered("later", 20), 300*time.Millisecond)
	s.send("", numbered("now", 20), 0)
	time.Sleep(400 * time.Millisecond)
	consumer := s.subscribe(nil)
	sameTexts(drain(consumer, 40), append(numbered("later", 20), numbered("now", 20)...), "received")
	expectQuiet(consumer)
	return ""
}

func batches(s *scene) string {
	consumer := s.subscribe(nil)
	producer := s.producer(pulsar.ProducerOptions{BatchingMaxPublishDelay: time.Minute})
	wanted := []string{}
	for batch := range 3 {
		for number := range 10 {
			text := fmt.Sprintf("%d-%d", batch, number)
			wanted = append(wanted, text)
			sendAsync(producer, text, fmt.Sprintf("key-%d", batch))
		}
		check(producer.Flush())
	}
	all := drain(consumer, 30)
	sameTexts(all, wanted, "received")
	entries := map[[2]int64]bool{}
	for _, each := range all {
		entries[[2]int64{each.message.ID().LedgerID(), each.message.ID().EntryID()}] = true
	}
	consumer.Close()
	expectQuiet(s.subscribe(nil))
	return fmt.Sprintf("%d entries", len(entries))
}

func small(queue int) func(*pulsar.ConsumerOptions) {
	return func(options *pulsar.ConsumerOptions) { options.ReceiverQueueSize = queue }
}

// Takes turns until `count` have come; who had which.
func share(consumers []pulsar.Consumer, count int) [][]received {
	all := make([][]received, len(consumers))
	for sum := 0; sum < count; {
		before := sum
		for index, consumer := range consumers {
			more := drainAll(consumer, 100*time.Millisecond)
			sum += len(more)
			all[index] = append(all[index], more...)
		}
		if before == sum {
			panic(failed(fmt.Sprintf("no more after %d", sum)))
		}
	}
	return all
}

// Several consumers: each message to one of them, and each of them has some.
func spread(s *scene) string {
	consumers := []pulsar.Consumer{s.subscribe(small(5)), s.subscribe(small(5)), s.subscribe(small(5))}
	s.send("", numbered("m", 90), 0)
	all := []received{}
	for _, mine := range share(consumers, 90) {
		same(len(mine) > 0, true, "had some")
		all = append(all, mine...)
	}
	sameTexts(all, numbered("m", 90), "received")
	return ""
}

// Refused twice: immediate messages and delayed ones.
func negativeAck(s *scene) string {
	consumer := s.subscribe(nil)
	s.send("", numbered("now", 2), 0)
	s.send("", numbered("later", 2), time.Second)
	all := []received{}
	for range 4 * 3 {
		one := drainUnacked(consumer, 1)[0]
		all = append(all, one)
		if one.count == 2 {
			check(consumer.Ack(one.message))
		} else {
			consumer.Nack(one.message)
		}
	}
	expectQuiet(consumer)
	return counts(all)
}

// One message at a time: asked for when the one before is done.
func zeroQueue(s *scene) string {
	consumer := s.subscribe(func(options *pulsar.ConsumerOptions) { options.EnableZeroQueueConsumer = true })
	s.send("", numbered("now", 3), 0)
	s.send("", numbered("later", 3), time.Second)
	sameTexts(drain(consumer, 6), append(numbered("now", 3), numbered("later", 3)...), "received")
	expectQuiet(consumer)
	return ""
}

func deadLetter(s *scene) string {
	dead := s.subscribe(on(s.topic+"-dead", "undertaker"))
	consumer := s.subscribe(func(options *pulsar.ConsumerOptions) {
		// Two redeliveries: this client counts deliveries.
		options.DLQ = &pulsar.DLQPolicy{MaxDeliveries: 3, DeadLetterTopic: s.topic + "-dead", InitialSubscriptionName: "kept"}
	})
	s.send("", []string{"good-0", "good-1", "bad-0"}, 0)
	s.send("", []string{"good-2", "bad-1"}, time.Second)
	all := []received{}
	for range 3 + 2*3 {
		one := drainUnacked(consumer, 1)[0]
		all = append(all, one)
		if strings.HasPrefix(one.text, "bad") {
			consumer.Nack(one.message)
		} else {
			check(consumer.Ack(one.message))
		}
	}
	sameTexts(drain(dead, 2), []string{"bad-0", "bad-1"}, "dead")
	expectQuiet(consumer, dead)
	return counts(all)
}

// Two more tries by the retry topic, each after a second, then the dead-letter topic.
func retryLetter(s *scene) string {
	dead := s.subscribe(on(s.topic+"-dead", "undertaker"))
	consumer := s.subscribe(func(options *pulsar.ConsumerOptions) {
		options.RetryEnable = true
		options.DLQ = &pulsar.DLQPolicy{
			MaxDeliveries: 2, DeadLetterTopic: s.topic + "-dead", RetryLetterTopic: s.topic + "-retry",
		}
	})
	s.send("", []string{"bad"}, 0)
	seen := []string{}
	for range 3 {
		sent := time.Now()
		one := drainUnacked(consumer, 1)[0]
		tries := one.message.Properties()["RECONSUMETIMES"]
		if tries != "" {
			same(time.Since(sent) >= 0, true, "after a while")
		}
		seen = append(seen, one.message.Topic()[len(s.topic):]+"/"+tries)
		consumer.ReconsumeLater(one.message, time.Second)
	}
	sameTexts(drain(dead, 1), []string{"bad"}, "dead")
	expectQuiet(consumer, dead)
	return strings.Join(seen, " ")
}

// What a consumer had and did not ack goes to the next one.
func leftWithoutAcks(s *scene) string {
	first := s.subscribe(func(options *pulsar.ConsumerOptions) { options.Name = "first" })
	s.send("", numbered("m", 10), 0)
	drainUnacked(first, 10)
	second := s.subscribe(func(options *pulsar.ConsumerOptions) { options.Name = "second" })
	first.Close()
	all := drain(second, 10)
	expectQuiet(second)
	return counts(all)
}

// Key_Shared: each key's messages in their order, all at one consumer.
func orderByKey(s *scene) string {
	consumers := []pulsar.Consumer{s.subscribe(small(10)), s.subscribe(small(10)), s.subscribe(small(10))}
	producer := s.producer(pulsar.ProducerOptions{DisableBatching: true})
	for number := range 200 {
		sendAsync(producer, fmt.Sprintf("%d:%d", number%20, number), fmt.Sprintf("key-%d", number%20))
	}
	check(producer.Flush())
	last, at := map[string]int{}, map[string]int{}
	for index, mine := range share(consumers, 200) {
		for _, each := range mine {
			key, number, _ := strings.Cut(each.text, ":")
			value := must(strconv.Atoi(number))
			if before, known := at[key]; known {
				same(index, before, "consumer of key "+key)
				same(value > last[key], true, "order of key "+key)
			}
			at[key], last[key] = index, value
		}
	}
	return ""
}

// A consumer leaves while messages flow: all are received by one or the other.
func closeUnderLoad(s *scene) string {
	leaving, staying := s.subscribe(small(20)), s.subscribe(small(20))
	producer := s.producer(pulsar.ProducerOptions{DisableBatching: true})
	for _, text := range numbered("m", 400) {
		sendAsync(producer, text, text)
	}
	all := drain(leaving, 50)
	leaving.Close()
	check(producer.Flush())
	all = append(all, drainAll(staying, 3*time.Second)...)
	once := map[string]bool{}
	for _, each := range all {
		once[each.text] = true
	}
	same(len(once), 400, "received by both")
	return ""
}

func ackReceipt(s *scene) string {
	answered := func(options *pulsar.ConsumerOptions) { options.AckWithResponse = true }
	consumer := s.subscribe(answered)
	s.send("", numbered("now", 10), 0)
	s.send("", numbered("later", 10), time.Second)
	drain(consumer, 20)
	consumer.Close()
	expectQuiet(s.subscribe(answered))
	return ""
}
