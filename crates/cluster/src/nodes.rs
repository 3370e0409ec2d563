//! The watch of Nodes.
//!
//! A loop of our own and not `kube::runtime::watcher`, because that one hides bookmarks and the
//! reopening of a watch, which are what tells a quiet cluster from a dead connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use swimlet_protocol::ClusterId;
use swimlet_verdict::{Input, NodeRef, WatchHealth};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::fallen::Fallen;
use crate::fault::{self, Fault};
use crate::node::NodeView;
use crate::roster::{Full, Roster};

/// How long the server is asked to keep a watch open. Its cache sends a bookmark once a minute
/// and 2 s before this timeout (`cacher.go`), so within it something always arrives.
const WATCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Silence after which the picture counts as old: a watch's timeout and 5 s for reopening it.
pub const STALE_AFTER: Duration = Duration::from_secs(35);
/// Nodes a page of the list: about 5 MB of JSON in a cluster with many images.
const PAGE_NODES: u32 = 500;
/// Most Nodes that are known at a time: as many as the judge holds. What exceeds it is not
/// watched over, and counted.
pub const NODES_MAX: usize = swimlet_verdict::constants::NODES_MAX;
/// Longest wait for a page of the list.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for a watch's head.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Counters of the watch.
#[derive(Debug, Default)]
pub struct WatchStats {
    /// Lists read to their end.
    pub lists: AtomicU64,
    /// Lists that a 410 made necessary.
    pub expired: AtomicU64,
    /// Events, bookmarks not included.
    pub events: AtomicU64,
    /// Lists and watches that failed.
    pub failures: AtomicU64,
    /// Objects that were no usable Node.
    pub unusable: AtomicU64,
    /// Nodes beyond [`NODES_MAX`].
    pub overflow: AtomicU64,
    /// Times the picture became stale.
    pub stale: AtomicU64,
}

/// The watch's task.
pub(crate) struct NodeWatch {
    api: Api<NodeView>,
    cluster: ClusterId,
    out: mpsc::Sender<Input>,
    fallen: Arc<Fallen>,
    /// When something was last heard; `None` before the first list is complete.
    heard: watch::Sender<Option<Instant>>,
    roster: Arc<Roster>,
    backoff: Backoff,
    stats: Arc<WatchStats>,
}

/// Why a watch came to its end.
enum End {
    /// Its time was over, or the connection broke: go on from the last version.
    Over,
    /// The version is too old: list anew.
    Expired,
    /// Nobody takes our events any more.
    Closed,
}

/// The receiver of events is gone; the process is on its way out.
struct Closed;

impl NodeWatch {
    pub(crate) fn new(
        client: kube::Client,
        cluster: ClusterId,
        out: mpsc::Sender<Input>,
        fallen: Arc<Fallen>,
        roster: Arc<Roster>,
        stats: Arc<WatchStats>,
        seed: u64,
    ) -> Self {
        Self {
            api: Api::all(client),
            cluster,
            out,
            fallen,
            heard: watch::Sender::new(None),
            roster,
            backoff: Backoff::new(Duration::from_millis(500), Duration::from_secs(10), seed),
            stats,
        }
    }

    /// When something was last heard from the server.
    pub(crate) fn heard(&self) -> watch::Receiver<Option<Instant>> {
        self.heard.subscribe()
    }

    /// Watches until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let _ = stop.run_until_cancelled(self.watch_for_ever()).await;
    }

    async fn watch_for_ever(&mut self) {
        loop {
            let mut version = match self.list().await {
                Ok(Ok(version)) => version,
                Ok(Err(Closed)) => return,
                Err(fault) => {
                    self.back_off("list", &fault).await;
                    continue;
                }
            };
            loop {
                let opened = Instant::now();
                match self.watch(&mut version).await {
                    Ok(End::Over) if opened.elapsed() >= Duration::from_secs(1) => {}
                    // A server that closes watches at once is not asked in a busy loop.
                    Ok(End::Over) => tokio::time::sleep(self.backoff.next(None)).await,
                    Ok(End::Expired) => {
                        self.stats.expired.fetch_add(1, Ordering::Relaxed);
                        break;
                    }
                    Ok(End::Closed) => return,
                    Err(Fault::Expired) => {
                        self.stats.expired.fetch_add(1, Ordering::Relaxed);
                        break;
                    }
                    Err(fault) => self.back_off("watch", &fault).await,
                }
            }
        }
    }

    /// Reads every Node, drops what vanished, and returns the version to watch from.
    async fn list(&mut self) -> Result<Result<String, Closed>, Fault> {
        let mut listed = BTreeMap::new();
        let mut next = None;
        let version = loop {
            let mut params = ListParams::default().limit(PAGE_NODES);
            params.continue_token = next;
            let page = fault::timed(LIST_TIMEOUT, self.api.list(&params)).await?;
            for node in page.items {
                if self.apply(&node).await.is_err() {
                    return Ok(Err(Closed));
                }
                if let Ok(node) = node.node_ref() {
                    listed.insert(node.name, node.uid);
                }
            }
            next = page.metadata.continue_.filter(|token| !token.is_empty());
            if next.is_none() {
                break page.metadata.resource_version.unwrap_or_default();
            }
        };
        let mut vanished = self.roster.all();
        vanished.retain(|node| listed.get(&node.name) != Some(&node.uid));
        for node in vanished {
            if self.gone(&node).await.is_err() {
                return Ok(Err(Closed));
            }
        }
        self.stats.lists.fetch_add(1, Ordering::Relaxed);
        self.backoff.reset();
        let listed = self.out.send(Input::NodesListed).await;
        self.hear();
        Ok(listed.map(|()| version).map_err(|_| Closed))
    }

    async fn watch(&mut self, version: &mut String) -> Result<End, Fault> {
        let seconds = u32::try_from(WATCH_TIMEOUT.as_secs()).unwrap_or(u32::MAX);
        let params = WatchParams::default().timeout(seconds);
        let opened = fault::timed(OPEN_TIMEOUT, self.api.watch(&params, version)).await?;
        let mut events = std::pin::pin!(opened);
        self.hear();
        loop {
            // A black-holed connection says nothing, not even that it is broken.
            let Ok(event) = tokio::time::timeout(STALE_AFTER, events.next()).await else {
                return Err(Fault::Timeout(STALE_AFTER));
            };
            let event = match event {
                None => return Ok(End::Over),
                Some(event) => event.map_err(Fault::from)?,
            };
            self.backoff.reset();
            let done = match event {
                WatchEvent::Bookmark(bookmark) => {
                    *version = bookmark.metadata.resource_version;
                    Ok(())
                }
                WatchEvent::Added(node) | WatchEvent::Modified(node) => {
                    self.stats.events.fetch_add(1, Ordering::Relaxed);
                    node.version().clone_into(version);
                    self.apply(&node).await
                }
                WatchEvent::Deleted(node) => {
                    self.stats.events.fetch_add(1, Ordering::Relaxed);
                    node.version().clone_into(version);
                    match node.node_ref() {
                        Ok(node) => self.gone(&node).await,
                        Err(error) => {
                            self.unusable(&error.to_string());
                            Ok(())
                        }
                    }
                }
                WatchEvent::Error(status) => match Fault::from(*status) {
                    Fault::Expired => return Ok(End::Expired),
                    fault => return Err(fault),
                },
            };
            if done.is_err() {
                return Ok(End::Closed);
            }
            self.hear();
        }
    }

    /// Passes a Node on; a re-created one only after the old one's end.
    async fn apply(&mut self, view: &NodeView) -> Result<(), Closed> {
        let seen = match view.seen(&self.cluster) {
            Ok(seen) => seen,
            Err(error) => {
                self.unusable(&error.to_string());
                return Ok(());
            }
        };
        match self.roster.see(&seen) {
            Ok(None) => {}
            Ok(Some(old)) => self.gone(&old).await?,
            Err(Full) => {
                self.stats.overflow.fetch_add(1, Ordering::Relaxed);
                tracing::error!(
                    node = %seen.node.name,
                    "more than {NODES_MAX} Nodes: this one is not watched over",
                );
                return Ok(());
            }
        }
        self.fallen.see(&seen);
        self.out.send(Input::Node(seen)).await.map_err(|_| Closed)
    }

    async fn gone(&mut self, node: &NodeRef) -> Result<(), Closed> {
        self.roster.forget(node);
        self.fallen.forget(&node.uid);
        self.out
            .send(Input::NodeGone(node.clone()))
            .await
            .map_err(|_| Closed)
    }

    fn hear(&self) {
        self.heard.send_replace(Some(Instant::now()));
    }

    fn unusable(&self, error: &str) {
        self.stats.unusable.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("{error}");
    }

    async fn back_off(&mut self, what: &str, fault: &Fault) {
        self.stats.failures.fetch_add(1, Ordering::Relaxed);
        let pause = self.backoff.next(fault.retry_after());
        if let Fault::Forbidden { message } = fault {
            tracing::error!("the API server forbids to {what} Nodes; grant it: {message}");
        } else {
            tracing::warn!("cannot {what} Nodes, next try in {pause:.1?}: {fault}");
        }
        tokio::time::sleep(pause).await;
    }
}

/// Says when the picture becomes stale and when it is fresh again. The one task that does, so
/// that the two cannot overtake each other.
pub(crate) async fn tell_health(
    mut heard: watch::Receiver<Option<Instant>>,
    out: mpsc::Sender<Input>,
    health: watch::Sender<WatchHealth>,
    stats: Arc<WatchStats>,
    stop: CancellationToken,
) {
    loop {
        let last = *heard.borrow_and_update();
        let now = if last.is_some_and(|last| last.elapsed() < STALE_AFTER) {
            WatchHealth::Fresh
        } else {
            WatchHealth::Stale
        };
        if health.send_replace(now) != now {
            if now == WatchHealth::Stale {
                stats.stale.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    "nothing heard of Nodes for {STALE_AFTER:?}: no decisions are taken"
                );
            }
            if out.send(Input::NodeWatch(now)).await.is_err() {
                return;
            }
        }
        let stale_at = last
            .filter(|_| now == WatchHealth::Fresh)
            .map(|last| last + STALE_AFTER);
        tokio::select! {
            changed = heard.changed() => if changed.is_err() { return },
            () = sleep_until(stale_at) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Sleeps until then; for ever, if there is no such moment.
async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
