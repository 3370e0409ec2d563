//! Events on Nodes and Pods, for the people who ask `kubectl describe`.
//!
//! Best effort by nature: never in the way of a write, bounded in rate, without repetition, and
//! what does not fit is dropped and counted. What was written to a Node, and what concerns the
//! whole cluster, goes before remarks and pods, of which there may be thousands at once.

mod notices;

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

pub(crate) use self::notices::Announcer;
use crate::fault::{self, Fault};

/// Events that wait, in each of the two queues: one for each pod of 40 Nodes with 100 pods, as a
/// rack may lose; or one for each Node of four fifths of the largest cluster.
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
    /// What tells it from others of the same reason about the same object.
    same: String,
    /// Times that it is told within [`REPEAT_AFTER`].
    told_max: u32,
}

/// Where Events are handed in.
#[derive(Clone, Debug)]
pub(crate) struct EventSink {
    first: mpsc::Sender<(ObjectReference, Note)>,
    second: mpsc::Sender<(ObjectReference, Note)>,
    stats: Arc<EventStats>,
}

/// The task that sends them.
pub(crate) struct EventSender {
    client: kube::Client,
    instance: String,
    first: mpsc::Receiver<(ObjectReference, Note)>,
    second: mpsc::Receiver<(ObjectReference, Note)>,
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
            same: message.to_owned(),
            told_max: 1,
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
            same: message.to_owned(),
            told_max: 1,
        }
    }

    /// A pod was marked: the in-tree controller's words (`MarkPodsNotReady`).
    pub(crate) fn pod_marked() -> Self {
        Self {
            kind: "Warning",
            reason: "NodeNotReady",
            action: "MarkPodNotReady",
            note: "Node is not ready".to_owned(),
            same: String::new(),
            told_max: 1,
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
        let (first, first_waiting) = mpsc::channel(QUEUE_MAX);
        let (second, second_waiting) = mpsc::channel(QUEUE_MAX);
        let sender = EventSender {
            client,
            instance: cut(instance, INSTANCE_BYTES_MAX).to_owned(),
            first: first_waiting,
            second: second_waiting,
            memory: Memory::default(),
            bucket: Bucket::new(Instant::now()),
            stats: Arc::clone(&stats),
        };
        let sink = Self {
            first,
            second,
            stats,
        };
        (sink, sender)
    }

    /// Says what was, or would have been, written to a Node.
    pub(crate) fn node(&self, node: &NodeRef, note: Note) {
        self.put(&self.first, reference_to(node), note);
    }

    /// Says something that concerns the whole cluster, about an object that stands for it.
    pub(crate) fn cluster(&self, regarding: ObjectReference, note: Note) {
        self.put(&self.first, regarding, note);
    }

    /// Remarks on a Node to which nothing was written.
    pub(crate) fn remark(&self, node: &NodeRef, note: Note) {
        self.put(&self.second, reference_to(node), note);
    }

    /// Says what was written to a pod.
    pub(crate) fn pod(&self, pod: ObjectReference, note: Note) {
        self.put(&self.second, pod, note);
    }

    fn put(
        &self,
        queue: &mpsc::Sender<(ObjectReference, Note)>,
        regarding: ObjectReference,
        note: Note,
    ) {
        if queue.try_send((regarding, note)).is_err() {
            self.stats.overflow.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn reference_to(node: &NodeRef) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.name.as_str().to_owned()),
        uid: Some(node.uid.as_str().to_owned()),
        ..ObjectReference::default()
    }
}

impl EventSender {
    /// Sends until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let _ = stop.run_until_cancelled(self.send_for_ever()).await;
    }

    async fn send_for_ever(&mut self) {
        loop {
            let next = tokio::select! {
                biased;
                next = self.first.recv() => next,
                next = self.second.recv() => next,
            };
            let Some((regarding, note)) = next else {
                return;
            };
            let uid = regarding.uid.clone().unwrap_or_default();
            let key = (uid, note.reason, note.same.clone());
            if !self.memory.may_tell(Instant::now(), key, note.told_max) {
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

/// What tells Events apart: the object's UID, the reason, and [`Note::same`].
type Key = (String, &'static str, String);

/// Which Events went out lately.
#[derive(Debug, Default)]
struct Memory {
    /// How often each was told since it was first.
    told: BTreeMap<Key, u32>,
    /// When each was first told, the oldest first.
    order: VecDeque<(Instant, Key)>,
}

impl Memory {
    /// Whether this may be told, once more; if so, it is noted as told.
    fn may_tell(&mut self, now: Instant, key: Key, told_max: u32) -> bool {
        while let Some((first, _)) = self.order.front()
            && now.duration_since(*first) >= REPEAT_AFTER
        {
            self.forget_oldest();
        }
        if let Some(told) = self.told.get_mut(&key) {
            *told = told.saturating_add(1);
            return *told <= told_max;
        }
        while self.order.len() >= REMEMBERED_MAX {
            self.forget_oldest();
        }
        self.told.insert(key.clone(), 1);
        self.order.push_back((now, key));
        true
    }

    fn forget_oldest(&mut self) {
        if let Some((_, oldest)) = self.order.pop_front() {
            self.told.remove(&oldest);
        }
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
        let key = |uid: usize| (uid.to_string(), "NodeNotReady", String::new());
        assert!(memory.may_tell(start, key(0), 1));
        assert!(!memory.may_tell(start + Duration::from_secs(599), key(0), 1));
        assert!(memory.may_tell(start + REPEAT_AFTER, key(0), 1));
        for uid in 1..5000 {
            assert!(memory.may_tell(start + REPEAT_AFTER, key(uid), 1));
        }
        assert!(memory.told.len() <= REMEMBERED_MAX && memory.order.len() <= REMEMBERED_MAX);
    }

    /// Guards what goes on and off: it is told a few times, and a flutter is silenced.
    #[test]
    fn what_may_be_told_more_often_is_told_that_often() {
        let start = Instant::now();
        let mut memory = Memory::default();
        let key = || ("u".to_owned(), "BrakeOn", "share".to_owned());
        let told = (0..100)
            .filter(|_| memory.may_tell(start, key(), 5))
            .count();
        assert_eq!(told, 5);
        assert!(memory.may_tell(start + REPEAT_AFTER, key(), 5));
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
