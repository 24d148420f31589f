// The unmodified Go client, driven from a test: one JSON request a line on stdin, one JSON reply a line on stdout,
// as java/Driver.java does for the Java client. Requests run side by side; what lives on is named by a handle.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
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
	Handle       int       `json:"handle"`
	Namesrv      string    `json:"namesrv"`
	Group        string    `json:"group"`
	Namespace    string    `json:"namespace"`
	Topic        string    `json:"topic"`
	Topics       []string  `json:"topics"`
	Broker       string    `json:"broker"`
	BrokerName   string    `json:"broker_name"`
	Mode         string    `json:"mode"`
	Selector     string    `json:"selector"`
	Message      message   `json:"message"`
	Messages     []message `json:"messages"`
	CompressOver int       `json:"compress_over"`
	Hooks        bool      `json:"hooks"`
	TraceTopic   string    `json:"trace_topic"`
	Expression   string    `json:"expression"`
	SQL          string    `json:"sql"`
	Model        string    `json:"model"`
	From         string    `json:"from"`
	Timestamp    string    `json:"timestamp"`
	Orderly      bool      `json:"orderly"`
	Echo         bool      `json:"echo"`
	MaxReconsume int32     `json:"max_reconsume"`
	DelayLevel   int       `json:"delay_level"`
	Batch        int       `json:"batch"`
	Strategy     string    `json:"strategy"`
	Count        int       `json:"count"`
	TimeoutMs    int64     `json:"timeout_ms"`
	QueueID      int       `json:"queue_id"`
	Queues       int       `json:"queues"`
	Offset       int64     `json:"offset"`
	AccessKey    string    `json:"access_key"`
	SecretKey    string    `json:"secret_key"`
	TLS          bool      `json:"tls"`
}

// tlsProducer and tlsConsumer let a client speak TLS, which the released ones cannot: tls.go is built with a later one.
var (
	tlsProducer func() producer.Option
	tlsConsumer func() consumer.Option
)

func (with arguments) credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: with.AccessKey, SecretKey: with.SecretKey}
}

func (with arguments) timeout() time.Duration {
	return time.Duration(with.TimeoutMs) * time.Millisecond
}

var verbs = map[string]func(arguments) (any, error){
	"producer.start":      producerStart,
	"producer.send":       producerSend,
	"producer.send_batch": producerSendBatch,
	"producer.request":    producerRequest,
	"transaction.start":   transactionStart,
	"transaction.send":    transactionSend,
	"transaction.checked": transactionChecked,
	"push.start":          pushStart,
	"push.take":           pushTake,
	"push.suspend":        pushSuspend,
	"push.resume":         pushResume,
	"push.lag":            pushLag,
	"pull.start":          pullStart,
	"pull.pull":           pullPull,
	"pull.from":           pullFrom,
	"pull.poll":           pullPoll,
	"pull.update_offset":  pullUpdateOffset,
	"pull.current_offset": pullCurrentOffset,
	"hooked":              hooked,
	"admin.start":         adminStart,
	"admin.create_topic":  adminCreateTopic,
	"admin.delete_topic":  adminDeleteTopic,
	"admin.topics":        adminTopics,
	"admin.queues":        adminQueues,
	"admin.groups":        adminGroups,
	"stop":                stop,
}

func main() {
	var writing sync.Mutex
	send := func(answer reply) {
		line, err := json.Marshal(answer)
		if err != nil {
			line, _ = json.Marshal(reply{ID: answer.ID, Error: &failure{Type: "Unprintable", Code: -1, Text: err.Error()}})
		}
		writing.Lock()
		defer writing.Unlock()
		os.Stdout.Write(append(line, '\n'))
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
		answer.Error = &failure{Type: fmt.Sprintf("%T", err), Code: -1, Text: err.Error()}
		return
	}
	answer.Result = result
	return
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

func held[T any](with arguments) T {
	objectsLock.Lock()
	defer objectsLock.Unlock()
	found, ok := objects[with.Handle].(T)
	if !ok {
		panic(fmt.Sprintf("handle %d is not of the kind that this request is for", with.Handle))
	}
	return found
}

// instance gives each client a client id, and so connections, of its own.
func instance() string {
	return fmt.Sprintf("driver%d", time.Now().UnixNano())
}

func stop(with arguments) (any, error) {
	kept := held[any](with)
	objectsLock.Lock()
	delete(objects, with.Handle)
	objectsLock.Unlock()
	if closing, ok := kept.(interface{ Close() error }); ok {
		return nil, closing.Close()
	}
	return nil, kept.(interface{ Shutdown() error }).Shutdown()
}
