//go:build tls

package main

import (
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func init() {
	tlsProducer = func() producer.Option { return producer.WithTls(true) }
	tlsConsumer = func() consumer.Option { return consumer.WithTls(true) }
}
