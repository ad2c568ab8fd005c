// The checks with the official Go client: `checks --url … --prefix … --type Shared`.
//
// Prints a JSON line for the client's version, then one for each check, as tests/programs/README.md says.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const atOnce = 6

type namedCheck struct {
	name string
	run  func(*scene) string
}

var checks = []namedCheck{
	{"immediate", immediate},
	{"delayed", delayed},
	{"never early", neverEarly},
	{"delayed backlog", delayedBacklog},
	{"batches", batches},
	{"spread", spread},
	{"negative ack", negativeAck},
	{"zero queue", zeroQueue},
	{"dead letter", deadLetter},
	{"retry letter", retryLetter},
	{"left without acks", leftWithoutAcks},
	{"order by key", orderByKey},
	{"close under load", closeUnderLoad},
	{"ack receipt", ackReceipt},
	{"seek earliest", seekEarliest},
	{"seek time", seekTime},
	{"seek id", seekID},
	{"seek over delayed", seekOverDelayed},
	{"unsubscribe", unsubscribe},
	{"initial position", initialPosition},
	{"partitioned", partitioned},
	{"several topics", severalTopics},
	{"pattern", pattern},
	{"reader", reader},
	{"schema", schema},
	{"metadata", metadata},
	{"empty", empty},
	{"compression", compression},
	{"chunks", chunks},
	{"batch index acks", batchIndexAcks},
}

type outcome struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Seen   string `json:"seen"`
	Reason string `json:"reason,omitempty"`
}

func run(s *scene, each namedCheck) (found outcome) {
	found.Check = each.name
	defer s.close()
	defer func() {
		if why := recover(); why != nil {
			found.Reason = fmt.Sprint(why)
		}
	}()
	found.Seen = each.run(s)
	found.OK = true
	return found
}

func connect(url, ca, token string) pulsar.Client {
	options := pulsar.ClientOptions{
		URL:                   url,
		TLSTrustCertsFilePath: ca,
		TLSValidateHostname:   ca != "",
		Logger:                log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil))),
	}
	if token != "" {
		options.Authentication = pulsar.NewAuthenticationToken(token)
	}
	client, err := pulsar.NewClient(options)
	if err != nil {
		panic(err)
	}
	return client
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, each := range info.Deps {
		if each.Path == "github.com/apache/pulsar-client-go" {
			return strings.TrimPrefix(each.Version, "v")
		}
	}
	return "unknown"
}

func printLine(value any) {
	line, _ := json.Marshal(value)
	fmt.Println(string(line))
}

func main() {
	url, prefix, kind := flag.String("url", "", ""), flag.String("prefix", "", ""), flag.String("type", "", "")
	ca, token, only := flag.String("ca", "", ""), flag.String("token", "", ""), flag.String("checks", "", "")
	flag.Parse()
	printLine(map[string]string{"client": "Go " + version()})
	client := connect(*url, *ca, *token)
	defer client.Close()
	slots, printing, all := make(chan struct{}, atOnce), sync.Mutex{}, sync.WaitGroup{}
	for _, each := range checks {
		keyed := *kind == "Key_Shared"
		if each.name == "order by key" && !keyed || *only != "" && !slices.Contains(strings.Split(*only, ","), each.name) {
			continue
		}
		topic := *prefix + "-" + strings.ReplaceAll(each.name, " ", "-")
		slots <- struct{}{}
		all.Go(func() {
			found := run(&scene{client: client, topic: topic, keyed: keyed}, each)
			<-slots
			printing.Lock()
			defer printing.Unlock()
			printLine(found)
		})
	}
	all.Wait()
}
