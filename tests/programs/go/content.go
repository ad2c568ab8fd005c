package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

type order struct {
	Item  string `json:"item"`
	Count int    `json:"count"`
}

const orderSchema = `{"type":"record","name":"Order","fields":[
	{"name":"item","type":"string"},{"name":"count","type":"int"}]}`

func schema(s *scene) string {
	kind := pulsar.NewJSONSchema(orderSchema, nil)
	consumer := s.subscribe(func(options *pulsar.ConsumerOptions) { options.Schema = kind })
	producer := s.producer(pulsar.ProducerOptions{Schema: kind})
	sendOne(producer, &pulsar.ProducerMessage{Value: order{"tea", 3}, Key: "k"})
	var value order
	check(drain(consumer, 1)[0].message.GetSchemaValue(&value))
	same(value, order{"tea", 3}, "value")
	return ""
}

func metadata(s *scene) string {
	consumer := s.subscribe(nil)
	name := s.topic[len(s.topic)-30:] + "-maker"
	number, at := int64(77), time.UnixMilli(1_234_567)
	properties := map[string]string{"one": "1", "two": "zwei"}
	sendOne(s.producer(pulsar.ProducerOptions{Name: name}), &pulsar.ProducerMessage{
		Payload: []byte("x"), Key: "key", OrderingKey: "order", Properties: properties, EventTime: at, SequenceID: &number,
	})
	found := drain(consumer, 1)[0].message
	same(found.Properties(), properties, "properties")
	same([]string{found.Key(), found.OrderingKey(), found.ProducerName()}, []string{"key", "order", name}, "told")
	same([]any{found.EventTime().UnixMilli(), found.Topic()}, []any{at.UnixMilli(), s.topic}, "told")
	return ""
}

// No payload at all; this client sends no null values.
func empty(s *scene) string {
	consumer := s.subscribe(nil)
	sendOne(s.producer(pulsar.ProducerOptions{}), &pulsar.ProducerMessage{Payload: []byte{}, Key: "k"})
	same(drain(consumer, 1)[0].text, "", "payload")
	return ""
}

func compression(s *scene) string {
	consumer := s.subscribe(nil)
	for _, kind := range []pulsar.CompressionType{pulsar.LZ4, pulsar.ZLib, pulsar.ZSTD, pulsar.SNAPPY} {
		text := strings.Repeat(fmt.Sprint(kind), 1000)
		producer := s.producer(pulsar.ProducerOptions{CompressionType: kind})
		sendOne(producer, &pulsar.ProducerMessage{Payload: []byte(text), Key: "k"})
		same(drain(consumer, 1)[0].text, text, fmt.Sprint("compression ", kind))
	}
	return ""
}

func chunks(s *scene) string {
	consumer := s.subscribe(nil)
	content := make([]byte, 50_000)
	must(rand.Read(content))
	producer := s.producer(pulsar.ProducerOptions{
		DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 10_000,
	})
	sendOne(producer, &pulsar.ProducerMessage{Payload: content, Key: "k"})
	same(bytes.Equal(drain(consumer, 1)[0].message.Payload(), content), true, "same content")
	expectQuiet(consumer)
	return ""
}

// Half of a batch is acked, the consumer leaves: whether the rest alone comes again is for the broker to say.
func batchIndexAcks(s *scene) string {
	by := func(options *pulsar.ConsumerOptions) { options.EnableBatchIndexAcknowledgment = true }
	consumer := s.subscribe(by)
	producer := s.producer(pulsar.ProducerOptions{BatchingMaxPublishDelay: time.Minute})
	for _, text := range numbered("m", 10) {
		sendAsync(producer, text, "k")
	}
	check(producer.Flush())
	for _, each := range drainUnacked(consumer, 10) {
		if each.text < "m-5" {
			check(consumer.Ack(each.message))
		}
	}
	consumer.Close()
	consumer = s.subscribe(by)
	return strings.Join(texts(append(drain(consumer, 5), drainAll(consumer, quiet)...)), " ")
}
