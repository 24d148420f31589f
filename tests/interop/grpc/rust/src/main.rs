//! The unmodified gRPC client of RocketMQ for Rust, driven from a test as java/GrpcDriver.java is: one JSON request a
//! line on stdin, one JSON reply a line on stdout. It has producers and simple consumers, no more.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::prelude::{Engine, BASE64_STANDARD};
use rocketmq::conf::{ClientOption, LoggingFormat, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType, SendReceipt};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, BufReader};

const MESSAGE_NOT_FOUND: i64 = 40401;

struct Sender {
    producer: Producer,
    checked: Arc<Mutex<Vec<String>>>,
}

struct Simple {
    consumer: SimpleConsumer,
    /// Topic and filter, one after the other.
    subscriptions: Vec<(String, FilterExpression)>,
}

#[derive(Clone)]
enum Kept {
    Sender(Arc<Sender>),
    Simple(Arc<Simple>),
    View(Arc<MessageView>),
}

#[derive(Default)]
struct Objects {
    kept: Mutex<HashMap<i64, Kept>>,
    handles: Mutex<i64>,
}

struct Failure {
    kind: String,
    code: i64,
    text: String,
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let code = error.context().iter().find(|(key, _)| *key == "code").and_then(|(_, code)| code.parse().ok());
        Failure { kind: format!("{:?}", error.kind()), code: code.unwrap_or(-1), text: error.to_string() }
    }
}

fn failure(text: &str) -> Failure {
    Failure { kind: "Driver".to_string(), code: -1, text: text.to_string() }
}

impl Objects {
    fn keep(&self, object: Kept) -> i64 {
        let mut handles = self.handles.lock().unwrap();
        *handles += 1;
        self.kept.lock().unwrap().insert(*handles, object);
        *handles
    }

    fn find(&self, handle: &Value) -> Result<Kept, Failure> {
        let found = handle.as_i64().and_then(|handle| self.kept.lock().unwrap().get(&handle).cloned());
        found.ok_or_else(|| failure("no object has this handle"))
    }

    fn sender(&self, with: &Value) -> Result<Arc<Sender>, Failure> {
        match self.find(&with["handle"])? {
            Kept::Sender(sender) => Ok(sender),
            _ => Err(failure("not a producer")),
        }
    }

    fn simple(&self, with: &Value) -> Result<Arc<Simple>, Failure> {
        match self.find(&with["handle"])? {
            Kept::Simple(simple) => Ok(simple),
            _ => Err(failure("not a simple consumer")),
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().map(|all| all.iter().map(text).collect()).unwrap_or_default()
}

fn configured(with: &Value) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(text(&with["endpoints"]));
    option.set_enable_tls(with["tls"].as_bool().unwrap_or(false));
    option.set_timeout(Duration::from_secs(10));
    if let Some(await_ms) = with["await_ms"].as_u64() {
        // It is the deadline of the call as well, of which servers want five seconds for the poll.
        option.set_long_polling_timeout(Duration::from_millis(await_ms + 5_000));
    }
    option
}

fn message(given: &Value, transaction: bool) -> Result<impl Message, Failure> {
    let body = BASE64_STANDARD.decode(text(&given["body"])).map_err(|error| failure(&error.to_string()))?;
    let mut made = MessageBuilder::builder().set_topic(text(&given["topic"])).set_body(body);
    if let Some(tag) = given["tag"].as_str() {
        made = made.set_tag(tag);
    }
    if given["keys"].is_array() {
        made = made.set_keys(texts(&given["keys"]));
    }
    if let Some(group) = given["group"].as_str() {
        made = made.set_message_group(group);
    }
    if let Some(delay_ms) = given["delay_ms"].as_u64() {
        let due = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_millis(delay_ms);
        made = made.set_delivery_timestamp(due.as_secs() as i64); // it takes seconds
    }
    if let Some(properties) = given["properties"].as_object() {
        let all: HashMap<String, String> = properties.iter().map(|(key, value)| (key.clone(), text(value))).collect();
        made = made.set_properties(all);
    }
    if transaction {
        made = made.enable_transaction();
    }
    Ok(made.build()?)
}

fn shown(got: &MessageView) -> Value {
    json!({
        "id": got.message_id(),
        "topic": got.topic(),
        "body": BASE64_STANDARD.encode(got.body()),
        "tag": got.tag(),
        "keys": got.keys(),
        "group": got.message_group(),
        "delivery_timestamp": got.delivery_timestamp().map(|seconds| seconds * 1000),
        "properties": got.properties(),
        "born_host": got.born_host(),
        "born_timestamp": got.born_timestamp() * 1000,
        "attempt": got.delivery_attempt(),
    })
}

fn receipt(sent: &SendReceipt) -> Value {
    json!({"id": sent.message_id(), "recall_handle": Value::Null})
}

async fn producer_start(objects: &Objects, with: &Value) -> Result<Value, Failure> {
    let mut option = ProducerOption::default();
    option.set_logging_format(LoggingFormat::Terminal);
    option.set_topics(texts(&with["topics"]));
    let checked = Arc::new(Mutex::new(Vec::new()));
    let mut producer = if let Some(checker) = with["checker"].as_str() {
        let (seen, commits) = (checked.clone(), checker == "COMMIT");
        let check = Box::new(move |_: String, view: MessageView| {
            seen.lock().unwrap().push(BASE64_STANDARD.encode(view.body()));
            if commits { TransactionResolution::COMMIT } else { TransactionResolution::ROLLBACK }
        });
        Producer::new_transaction_producer(option, configured(with), check)?
    } else {
        Producer::new(option, configured(with))?
    };
    producer.start().await?;
    Ok(json!({"handle": objects.keep(Kept::Sender(Arc::new(Sender { producer, checked })))}))
}

/// One message after the other, or all in one request with "together".
async fn producer_send(objects: &Objects, with: &Value) -> Result<Value, Failure> {
    let sender = objects.sender(with)?;
    let given = with["messages"].as_array().cloned().unwrap_or_default();
    let mut made = Vec::new();
    for each in &given {
        made.push(message(each, false)?);
    }
    if with["together"].as_bool().unwrap_or(false) {
        let sent = sender.producer.batch_send(made).await?;
        // A batch has one receipt, with all ids.
        let ids = sent.iter().flat_map(|each| each.message_id().split(','));
        return Ok(ids.map(|id| json!({"id": id, "recall_handle": Value::Null})).collect());
    }
    let mut receipts = Vec::new();
    for each in made {
        receipts.push(receipt(&sender.producer.send(each).await?));
    }
    Ok(Value::Array(receipts))
}

/// A message in a transaction that ends with commit, rollback or, for now, not at all.
async fn producer_transact(objects: &Objects, with: &Value) -> Result<Value, Failure> {
    let sender = objects.sender(with)?;
    let transaction = sender.producer.send_transaction_message(message(&with["message"], true)?).await?;
    let id = transaction.message_id().to_string();
    match with["end"].as_str() {
        Some("commit") => transaction.commit().await?,
        Some("rollback") => transaction.rollback().await?,
        _ => (),
    }
    Ok(json!({"id": id, "recall_handle": Value::Null}))
}

async fn simple_start(objects: &Objects, with: &Value) -> Result<Value, Failure> {
    let mut subscriptions = Vec::new();
    for (topic, filter) in with["subscriptions"].as_object().into_iter().flatten() {
        let kind = if filter[0] == "SQL92" { FilterType::Sql } else { FilterType::Tag };
        subscriptions.push((topic.clone(), FilterExpression::new(kind, text(&filter[1]))));
    }
    let mut option = SimpleConsumerOption::default();
    option.set_logging_format(LoggingFormat::Terminal);
    option.set_consumer_group(text(&with["group"]));
    option.set_topics(subscriptions.iter().map(|(topic, _)| topic.clone()).collect());
    let mut consumer = SimpleConsumer::new(option, configured(with))?;
    consumer.start().await?;
    Ok(json!({"handle": objects.keep(Kept::Simple(Arc::new(Simple { consumer, subscriptions })))}))
}

async fn simple_receive(objects: &Objects, with: &Value) -> Result<Value, Failure> {
    let simple = objects.simple(with)?;
    let most = with["max"].as_i64().unwrap_or(32) as i32;
    let invisible = Duration::from_millis(with["invisible_ms"].as_u64().unwrap_or(15_000));
    let mut views = Vec::new();
    for (topic, filter) in &simple.subscriptions {
        let received = match simple.consumer.receive_with(topic, filter, most, invisible).await {
            Ok(received) => received,
            Err(error) => match Failure::from(error) {
                none if none.code == MESSAGE_NOT_FOUND => Vec::new(),
                // The call may last as long as the poll: either end says first that nothing came.
                none if none.text.contains("Timeout expired") => Vec::new(),
                other => return Err(other),
            },
        };
        for got in received {
            let mut view = shown(&got);
            view["view"] = json!(objects.keep(Kept::View(Arc::new(got))));
            views.push(view);
        }
    }
    Ok(Value::Array(views))
}

async fn simple_ack(objects: &Objects, with: &Value) -> Result<Value, Failure> {
    match objects.find(&with["view"])? {
        Kept::View(view) => objects.simple(with)?.consumer.ack(&*view).await?,
        _ => return Err(failure("not a message")),
    }
    Ok(Value::Null)
}

async fn stop(objects: &Objects, with: &Value) -> Result<Value, Failure> {
    let stopped = with["handle"].as_i64().and_then(|handle| objects.kept.lock().unwrap().remove(&handle));
    match stopped {
        Some(Kept::Sender(sender)) => match Arc::try_unwrap(sender) {
            Ok(sender) => sender.producer.shutdown().await?,
            Err(_) => return Err(failure("the producer is at work")),
        },
        Some(Kept::Simple(simple)) => match Arc::try_unwrap(simple) {
            Ok(simple) => simple.consumer.shutdown().await?,
            Err(_) => return Err(failure("the consumer is at work")),
        },
        _ => return Err(failure("nothing to stop")),
    }
    Ok(Value::Null)
}

async fn perform(objects: &Objects, verb: &str, with: &Value) -> Result<Value, Failure> {
    match verb {
        "producer.start" => producer_start(objects, with).await,
        "producer.send" => producer_send(objects, with).await,
        "producer.transact" => producer_transact(objects, with).await,
        "producer.checked" => Ok(json!(*objects.sender(with)?.checked.lock().unwrap())),
        "simple.start" => simple_start(objects, with).await,
        "simple.receive" => simple_receive(objects, with).await,
        "simple.ack" => simple_ack(objects, with).await,
        "stop" => stop(objects, with).await,
        _ => Err(failure("no such request")),
    }
}

fn reply(answer: Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{answer}").and_then(|()| out.flush()).expect("the test reads what is written");
}

#[tokio::main]
async fn main() {
    let objects = Arc::new(Objects::default());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    reply(json!({"id": 0, "result": "ready"}));
    while let Ok(Some(line)) = lines.next_line().await {
        let objects = objects.clone();
        tokio::spawn(async move {
            let request: Value = serde_json::from_str(&line).expect("a request is JSON");
            let answer = match perform(&objects, request["do"].as_str().unwrap_or_default(), &request["with"]).await {
                Ok(result) => json!({"id": request["id"], "result": result}),
                Err(error) => {
                    let told = json!({"type": error.kind, "code": error.code, "text": error.text});
                    json!({"id": request["id"], "error": told})
                }
            };
            reply(answer);
        });
    }
    std::process::exit(0); // the test session is over: no orderly shutdown, so that nothing can hang here
}
