//! Events on Nodes and Pods, for the people who ask `kubectl describe`.
//!
//! Best effort by nature: never in the way of a write, bounded in rate, without repetition, and
//! what does not fit is dropped and counted.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use swimlet_verdict::NodeRef;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fault::{self, Fault};

/// Events that wait: one for each pod of 40 Nodes with 100 pods, as a rack may lose.
const QUEUE_MAX: usize = 4096;
/// Events a second, when the burst is used up: the QPS of the in-tree node lifecycle controller.
const RATE_PER_SECOND: u32 = 20;
/// Events that go out at once.
const BURST: u32 = 100;
/// The same Event is not repeated within this time.
const REPEAT_AFTER: Duration = Duration::from_secs(600);
/// Events that are remembered for that: a fall of 2,000 Nodes; beyond it the oldest is forgotten,
/// and repeated at worst.
const REMEMBERED_MAX: usize = 2048;
/// Longest wait for the server.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Longest note (`NoteLengthLimit` in `pkg/apis/core/validation/events.go`).
const NOTE_BYTES_MAX: usize = 1024;
/// Longest part of the regarded object's name in the Event's own name, which has 253 in all.
const NAME_BYTES_MAX: usize = 220;
/// Longest instance (`ReportingInstanceLengthLimit`).
const INSTANCE_BYTES_MAX: usize = 128;
/// Who reports, as a qualified name.
const CONTROLLER: &str = "swimlet.dev/aggregator";
/// Where Events about objects without a namespace go.
const CLUSTER_NAMESPACE: &str = "default";

/// Counters of Events.
#[derive(Debug, Default)]
pub struct EventStats {
    /// Events created.
    pub created: AtomicU64,
    /// Events not repeated.
    pub repeated: AtomicU64,
    /// Events dropped because 4,096 waited.
    pub overflow: AtomicU64,
    /// Events that the server did not take.
    pub failed: AtomicU64,
}

/// What an Event says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Note {
    kind: &'static str,
    reason: &'static str,
    action: &'static str,
    note: String,
}

/// Where Events are handed in.
#[derive(Clone, Debug)]
pub(crate) struct EventSink {
    queue: mpsc::Sender<(ObjectReference, Note)>,
    stats: Arc<EventStats>,
}

/// The task that sends them.
pub(crate) struct EventSender {
    client: kube::Client,
    instance: String,
    queue: mpsc::Receiver<(ObjectReference, Note)>,
    memory: Memory,
    bucket: Bucket,
    stats: Arc<EventStats>,
}

impl Note {
    /// A condition was written.
    pub(crate) fn written(reason: &'static str, message: &str) -> Self {
        Self {
            kind: "Warning",
            reason,
            action: "SetReadyUnknown",
            note: format!("Ready set to Unknown: {message}"),
        }
    }

    /// A condition would have been written.
    pub(crate) fn would_write(reason: &'static str, message: &str) -> Self {
        Self {
            kind: "Normal",
            reason: "WouldSetReadyUnknown",
            action: "Observe",
            note: format!(
                "observe mode, nothing was changed; enforce would have set Ready to Unknown \
                 ({reason}): {message}"
            ),
        }
    }

    /// A pod was marked: the in-tree controller's words (`MarkPodsNotReady`).
    pub(crate) fn pod_marked() -> Self {
        Self {
            kind: "Warning",
            reason: "NodeNotReady",
            action: "MarkPodNotReady",
            note: "Node is not ready".to_owned(),
        }
    }
}

impl EventSink {
    /// A queue and the task that empties it.
    pub(crate) fn new(
        client: kube::Client,
        instance: &str,
        stats: Arc<EventStats>,
    ) -> (Self, EventSender) {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let sender = EventSender {
            client,
            instance: cut(instance, INSTANCE_BYTES_MAX).to_owned(),
            queue: waiting,
            memory: Memory::default(),
            bucket: Bucket::new(Instant::now()),
            stats: Arc::clone(&stats),
        };
        (Self { queue, stats }, sender)
    }

    /// Says something about a Node.
    pub(crate) fn node(&self, node: &NodeRef, note: Note) {
        self.put(
            ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(node.name.as_str().to_owned()),
                uid: Some(node.uid.as_str().to_owned()),
                ..ObjectReference::default()
            },
            note,
        );
    }

    /// Says something about any object.
    pub(crate) fn put(&self, regarding: ObjectReference, note: Note) {
        if self.queue.try_send((regarding, note)).is_err() {
            self.stats.overflow.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl EventSender {
    /// Sends until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let _ = stop.run_until_cancelled(self.send_for_ever()).await;
    }

    async fn send_for_ever(&mut self) {
        while let Some((regarding, note)) = self.queue.recv().await {
            let uid = regarding.uid.clone().unwrap_or_default();
            if !self.memory.is_new(Instant::now(), (uid, note.clone())) {
                self.stats.repeated.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            tokio::time::sleep(self.bucket.take(Instant::now())).await;
            self.send(regarding, note).await;
        }
    }

    async fn send(&self, regarding: ObjectReference, note: Note) {
        let namespace = regarding.namespace.clone();
        let namespace = namespace.as_deref().unwrap_or(CLUSTER_NAMESPACE);
        let event = self.event(namespace, regarding, note);
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        match fault::timed(TIMEOUT, api.create(&PostParams::default(), &event)).await {
            Ok(_) => {
                self.stats.created.fetch_add(1, Ordering::Relaxed);
            }
            Err(fault) => {
                self.stats.failed.fetch_add(1, Ordering::Relaxed);
                if let Fault::Forbidden { message } = &fault {
                    tracing::error!(
                        "the API server forbids Events; grant create on events.events.k8s.io: \
                         {message}"
                    );
                } else {
                    tracing::warn!("an Event was lost: {fault}");
                }
            }
        }
    }

    fn event(&self, namespace: &str, regarding: ObjectReference, note: Note) -> Event {
        let now = Timestamp::now();
        let regarded = cut(
            regarding.name.as_deref().unwrap_or("object"),
            NAME_BYTES_MAX,
        );
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{regarded}.{:x}", now.as_nanosecond())),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            action: Some(note.action.to_owned()),
            event_time: Some(MicroTime(now)),
            note: Some(cut(&note.note, NOTE_BYTES_MAX).to_owned()),
            reason: Some(note.reason.to_owned()),
            regarding: Some(regarding),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(note.kind.to_owned()),
            ..Event::default()
        }
    }
}

/// Which Events went out lately.
#[derive(Debug, Default)]
struct Memory {
    sent: BTreeMap<(String, Note), Instant>,
    order: VecDeque<(Instant, (String, Note))>,
}

impl Memory {
    fn is_new(&mut self, now: Instant, key: (String, Note)) -> bool {
        while let Some((sent, _)) = self.order.front()
            && (now.duration_since(*sent) >= REPEAT_AFTER || self.order.len() >= REMEMBERED_MAX)
        {
            if let Some((_, oldest)) = self.order.pop_front() {
                self.sent.remove(&oldest);
            }
        }
        if self.sent.contains_key(&key) {
            return false;
        }
        self.sent.insert(key.clone(), now);
        self.order.push_back((now, key));
        true
    }
}

/// A token bucket that answers with how long to wait.
#[derive(Debug)]
struct Bucket {
    /// When the bucket would be full, were nothing more taken.
    full_at: Instant,
}

impl Bucket {
    fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    fn take(&mut self, now: Instant) -> Duration {
        let token = Duration::from_secs(1) / RATE_PER_SECOND;
        self.full_at = self.full_at.max(now) + token;
        self.full_at
            .duration_since(now)
            .saturating_sub(token * BURST)
    }
}

/// The beginning of a text, at a character's boundary.
fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_not_repeated_within_its_time_and_the_memory_is_bounded() {
        let start = Instant::now();
        let mut memory = Memory::default();
        let key = |uid: usize| (uid.to_string(), Note::pod_marked());
        assert!(memory.is_new(start, key(0)));
        assert!(!memory.is_new(start + Duration::from_secs(599), key(0)));
        assert!(memory.is_new(start + REPEAT_AFTER, key(0)));
        for uid in 1..5000 {
            assert!(memory.is_new(start + REPEAT_AFTER, key(uid)));
        }
        assert!(memory.sent.len() <= REMEMBERED_MAX && memory.order.len() <= REMEMBERED_MAX);
    }

    #[test]
    fn a_burst_goes_out_at_once_and_the_rest_at_the_rate() {
        let now = Instant::now();
        let mut bucket = Bucket::new(now);
        for _ in 0..BURST {
            assert_eq!(bucket.take(now), Duration::ZERO);
        }
        assert_eq!(bucket.take(now), Duration::from_millis(50));
        assert_eq!(bucket.take(now + Duration::from_secs(60)), Duration::ZERO);
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(cut("aü", 2), "a");
        assert_eq!(cut("aü", 3), "aü");
    }
}
