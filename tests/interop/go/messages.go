package main

import (
	"context"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// message to be sent; a body is base64.
type message struct {
	Topic       string            `json:"topic"`
	Body        []byte            `json:"body"`
	Tags        string            `json:"tags"`
	Keys        []string          `json:"keys"`
	Flag        int32             `json:"flag"`
	DelayLevel  int               `json:"delay_level"`
	ShardingKey string            `json:"sharding_key"`
	Properties  map[string]string `json:"properties"`
	BrokerName  string            `json:"broker_name"`
	QueueID     *int              `json:"queue_id"`
}

func (given message) build() *primitive.Message {
	made := primitive.NewMessage(given.Topic, given.Body)
	made.Flag = given.Flag
	if given.Tags != "" {
		made.WithTag(given.Tags)
	}
	if len(given.Keys) > 0 {
		made.WithKeys(given.Keys)
	}
	if given.DelayLevel != 0 {
		made.WithDelayTimeLevel(given.DelayLevel)
	}
	if given.ShardingKey != "" {
		made.WithShardingKey(given.ShardingKey)
	}
	for name, value := range given.Properties {
		made.WithProperty(name, value)
	}
	if given.QueueID != nil {
		made.Queue = &primitive.MessageQueue{Topic: given.Topic, BrokerName: given.BrokerName, QueueId: *given.QueueID}
	}
	return made
}

// received is a message as the client gave it to the program.
type received struct {
	Topic          string            `json:"topic"`
	QueueID        int               `json:"queue_id"`
	QueueOffset    int64             `json:"queue_offset"`
	PhysicalOffset int64             `json:"physical_offset"`
	StoreSize      int32             `json:"store_size"`
	SysFlag        int32             `json:"sys_flag"`
	Flag           int32             `json:"flag"`
	BornTimestamp  int64             `json:"born_timestamp"`
	StoreTimestamp int64             `json:"store_timestamp"`
	BornHost       string            `json:"born_host"`
	StoreHost      string            `json:"store_host"`
	MsgID          string            `json:"msg_id"`
	OffsetMsgID    string            `json:"offset_msg_id"`
	BodyCRC        int32             `json:"body_crc"`
	ReconsumeTimes int32             `json:"reconsume_times"`
	Tags           string            `json:"tags"`
	Keys           string            `json:"keys"`
	Properties     map[string]string `json:"properties"`
	Body           []byte            `json:"body"`
}

func shown(got *primitive.MessageExt) received {
	body := got.Body
	if body == nil {
		body = []byte{}
	}
	return received{
		Topic: got.Topic, QueueID: got.Queue.QueueId, QueueOffset: got.QueueOffset, PhysicalOffset: got.CommitLogOffset,
		StoreSize: got.StoreSize, SysFlag: got.SysFlag, Flag: got.Flag, BornTimestamp: got.BornTimestamp,
		StoreTimestamp: got.StoreTimestamp, BornHost: got.BornHost, StoreHost: got.StoreHost, MsgID: got.MsgId,
		OffsetMsgID: got.OffsetMsgId, BodyCRC: got.BodyCRC, ReconsumeTimes: got.ReconsumeTimes, Tags: got.GetTags(),
		Keys: got.GetKeys(), Properties: got.GetProperties(), Body: body,
	}
}

func allShown(got []*primitive.MessageExt) []received {
	list := make([]received, 0, len(got))
	for _, one := range got {
		list = append(list, shown(one))
	}
	return list
}

// ---- interceptors

var (
	noticesLock sync.Mutex
	notices     = map[string][]string{}
)

func hooked(with arguments) (any, error) {
	noticesLock.Lock()
	defer noticesLock.Unlock()
	return append([]string{}, notices[with.Group]...), nil
}

// interceptor notes what the client of a group calls it for.
func interceptor(group string) primitive.Interceptor {
	note := func(what string) {
		noticesLock.Lock()
		defer noticesLock.Unlock()
		notices[group] = append(notices[group], what)
	}
	return func(ctx context.Context, asked, answer any, next primitive.Invoker) error {
		note("before")
		err := next(ctx, asked, answer)
		if err != nil {
			note("failed")
		} else {
			note("after")
		}
		return err
	}
}
