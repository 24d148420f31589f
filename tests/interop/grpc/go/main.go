// The unmodified gRPC client of RocketMQ for Go, driven from a test as java/GrpcDriver.java is: one JSON request a line
// on stdin, one JSON reply a line on stdout. Requests run side by side; what lives on is named by a handle.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type request struct {
	ID   int64     `json:"id"`
	Do   string    `json:"do"`
	With arguments `json:"with"`
}

type reply struct {
	ID     int64    `json:"id"`
	Result any      `json:"result"`
	Error  *failure `json:"error,omitempty"`
}

type failure struct {
	Type string `json:"type"`
	Code int    `json:"code"`
	Text string `json:"text"`
}

// arguments of all requests; each takes what it needs.
type arguments struct {
	Handle        int                  `json:"handle"`
	Endpoints     string               `json:"endpoints"`
	TLS           bool                 `json:"tls"`
	Topic         string               `json:"topic"`
	Topics        []string             `json:"topics"`
	Group         string               `json:"group"`
	Checker       string               `json:"checker"`
	Message       message              `json:"message"`
	Messages      []message            `json:"messages"`
	Together      bool                 `json:"together"`
	End           string               `json:"end"`
	RecallHandle  string               `json:"recall_handle"`
	Subscriptions map[string][2]string `json:"subscriptions"`
	AwaitMs       int64                `json:"await_ms"`
	InvisibleMs   int64                `json:"invisible_ms"`
	Max           int32                `json:"max"`
	View          int                  `json:"view"`
	Failures      int                  `json:"failures"`
	Count         int                  `json:"count"`
	TimeoutMs     int64                `json:"timeout_ms"`
}

func milliseconds(count int64) time.Duration {
	return time.Duration(count) * time.Millisecond
}

// configuration of a client. Whether it speaks TLS is a setting of the whole program.
func (with arguments) configuration() *rocketmq.Config {
	rocketmq.EnableSsl = with.TLS
	return &rocketmq.Config{
		Endpoint:      with.Endpoints,
		ConsumerGroup: with.Group,
		Credentials:   &credentials.SessionCredentials{},
	}
}

func (with arguments) filters() map[string]*rocketmq.FilterExpression {
	filters := map[string]*rocketmq.FilterExpression{}
	for topic, filter := range with.Subscriptions {
		kind := rocketmq.TAG
		if filter[0] == "SQL92" {
			kind = rocketmq.SQL92
		}
		filters[topic] = rocketmq.NewFilterExpressionWithType(filter[1], kind)
	}
	return filters
}

var verbs = map[string]func(arguments) (any, error){
	"producer.start":    producerStart,
	"producer.send":     producerSend,
	"producer.recall":   producerRecall,
	"producer.transact": producerTransact,
	"producer.checked":  producerChecked,
	"simple.start":      simpleStart,
	"simple.receive":    simpleReceive,
	"simple.ack":        simpleAck,
	"simple.change":     simpleChange,
	"push.start":        pushStart,
	"push.take":         pushTake,
	"lite.start":        liteStart,
	"lite.subscribe":    liteSubscribe,
	"lite.unsubscribe":  liteUnsubscribe,
	"stop":              stop,
}

func main() {
	replies := os.Stdout
	os.Stdout = os.Stderr // the client prints
	var writing sync.Mutex
	send := func(answer reply) {
		line, err := json.Marshal(answer)
		if err != nil {
			line, _ = json.Marshal(reply{ID: answer.ID, Error: &failure{Type: "Unprintable", Code: -1, Text: err.Error()}})
		}
		writing.Lock()
		defer writing.Unlock()
		replies.Write(append(line, '\n'))
	}
	send(reply{ID: 0, Result: "ready"})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, "not a request:", err)
			os.Exit(2)
		}
		go func() { send(perform(asked)) }()
	}
	// stdin closed: the test session is over. No orderly shutdown, so that nothing can hang here.
	os.Exit(0)
}

func perform(asked request) (answer reply) {
	answer.ID = asked.ID
	defer func() {
		if thrown := recover(); thrown != nil {
			answer.Error = &failure{Type: "panic", Code: -1, Text: fmt.Sprint(thrown)}
		}
	}()
	verb, known := verbs[asked.Do]
	if !known {
		answer.Error = &failure{Type: "unknown", Code: -1, Text: "no such request: " + asked.Do}
		return
	}
	result, err := verb(asked.With)
	if err != nil {
		answer.Error = &failure{Type: fmt.Sprintf("%T", err), Code: code(err), Text: err.Error()}
		return
	}
	answer.Result = result
	return
}

// code of a status that the server gave; -1: it gave none.
func code(err error) int {
	if status, given := rocketmq.AsErrRpcStatus(err); given {
		return int(status.GetCode())
	}
	return -1
}

// ---- what lives on

var (
	objectsLock sync.Mutex
	objects     = map[int]any{}
	handles     int
)

type started struct {
	Handle int `json:"handle"`
}

func keep(object any) started {
	objectsLock.Lock()
	defer objectsLock.Unlock()
	handles++
	objects[handles] = object
	return started{handles}
}

func held[T any](handle int) T {
	objectsLock.Lock()
	defer objectsLock.Unlock()
	found, ok := objects[handle].(T)
	if !ok {
		panic(fmt.Sprintf("handle %d is not of the kind that this request is for", handle))
	}
	return found
}

func stop(with arguments) (any, error) {
	kept := held[interface{ GracefulStop() error }](with.Handle)
	objectsLock.Lock()
	delete(objects, with.Handle)
	objectsLock.Unlock()
	return nil, kept.GracefulStop()
}
