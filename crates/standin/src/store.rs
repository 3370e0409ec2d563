//! The objects, their one version counter, and the bounded history that watches read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

use crate::error::ApiError;
use crate::ids::SplitMix64;
use crate::resource::{Endpoint, Resource};

/// Namespace (empty for cluster-scoped resources) and name.
pub(crate) type ObjectKey = (String, String);

/// What happened to an object, as the history keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    /// The object before; none for a creation. A watch with a selector needs it to see what left the selection.
    pub(crate) before: Option<Arc<Value>>,
    /// The object after; for a deletion its last state with the version of the deletion.
    pub(crate) after: Arc<Value>,
    pub(crate) deleted: bool,
}

/// The changes a watch asked for are gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expired {
    pub(crate) wanted: u64,
    pub(crate) oldest: u64,
}

/// The store. One lock over everything: no critical section does more than copy pointers or compare two objects.
pub(crate) struct Store {
    inner: Mutex<Inner>,
    newest: watch::Sender<u64>,
    writes: AtomicU64,
    dropped_changes: AtomicU64,
}

impl Store {
    pub(crate) fn new(seed: u64, history_per_resource: usize) -> Self {
        // Version 0 means "any" in requests, so that the first object gets 2 and an empty store lists at 1.
        let inner = Inner {
            version: 1,
            history_per_resource,
            shelves: Resource::ALL.map(|_| Shelf::default()),
            ids: SplitMix64::new(seed),
        };
        Self {
            inner: Mutex::new(inner),
            newest: watch::Sender::new(1),
            writes: AtomicU64::new(0),
            dropped_changes: AtomicU64::new(0),
        }
    }

    pub(crate) fn read(&self, resource: Resource, key: &ObjectKey) -> Option<Arc<Value>> {
        self.lock().shelf(resource).objects.get(key).cloned()
    }

    /// The objects of one namespace, or of all, in the order of their keys, and the version at which they stood so.
    pub(crate) fn list(
        &self,
        resource: Resource,
        namespace: Option<&str>,
    ) -> (u64, Vec<Arc<Value>>) {
        let inner = self.lock();
        let objects = inner.shelf(resource).objects.iter();
        let objects = objects.filter(|((ns, _), _)| namespace.is_none_or(|wanted| wanted == ns));
        let objects = objects.map(|(_, object)| Arc::clone(object)).collect();
        (inner.version, objects)
    }

    /// The changes after the version `seen`, and the version to which they lead.
    pub(crate) fn since(
        &self,
        resource: Resource,
        seen: u64,
    ) -> Result<(u64, Vec<Change>), Expired> {
        let inner = self.lock();
        let shelf = inner.shelf(resource);
        if seen < shelf.forgotten {
            return Err(Expired {
                wanted: seen,
                oldest: shelf.forgotten,
            });
        }
        let from = shelf
            .history
            .partition_point(|change| change.version <= seen);
        let changes = shelf.history.range(from..).cloned().collect();
        Ok((inner.version.max(seen), changes))
    }

    /// Tells of every new version and of every compaction.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Creates what `prepare` makes of a fresh identity.
    pub(crate) fn create(
        &self,
        endpoint: &Endpoint,
        key: ObjectKey,
        prepare: impl FnOnce(&mut SplitMix64) -> Result<Value, ApiError>,
    ) -> Result<Arc<Value>, ApiError> {
        let mut inner = self.lock();
        if inner.shelf(endpoint.resource).objects.contains_key(&key) {
            return Err(ApiError::already_exists(endpoint.group_resource, &key.1));
        }
        let object = prepare(&mut inner.ids)?;
        Ok(self.put(&mut inner, endpoint.resource, key, None, object))
    }

    /// Replaces an object by what `change` makes of it; what differs in nothing is not written, as in
    /// `GuaranteedUpdate` of the etcd3 store. `None` if there is no such object.
    pub(crate) fn update(
        &self,
        endpoint: &Endpoint,
        key: &ObjectKey,
        change: impl FnOnce(&Value) -> Result<Value, ApiError>,
    ) -> Option<Result<Arc<Value>, ApiError>> {
        let mut inner = self.lock();
        let before = Arc::clone(inner.shelf(endpoint.resource).objects.get(key)?);
        Some(change(&before).map(|after| {
            if after == *before {
                return before;
            }
            self.put(
                &mut inner,
                endpoint.resource,
                key.clone(),
                Some(before),
                after,
            )
        }))
    }

    /// Deletes an object that `permit` agrees to delete. `None` if there is no such object.
    pub(crate) fn delete(
        &self,
        endpoint: &Endpoint,
        key: &ObjectKey,
        permit: impl FnOnce(&Value) -> Result<(), ApiError>,
    ) -> Option<Result<Arc<Value>, ApiError>> {
        let mut inner = self.lock();
        let before = Arc::clone(inner.shelf(endpoint.resource).objects.get(key)?);
        if let Err(refusal) = permit(&before) {
            return Some(Err(refusal));
        }
        inner.shelf_mut(endpoint.resource).objects.remove(key);
        let version = inner.next_version();
        let after = Arc::new(with_version((*before).clone(), version));
        let change = Change {
            version,
            before: Some(before),
            after: Arc::clone(&after),
            deleted: true,
        };
        self.record(&mut inner, endpoint.resource, change);
        Some(Ok(after))
    }

    /// Forgets all history: open watches end with 410, and no watch can start from a version already given out.
    pub(crate) fn compact(&self) {
        let mut inner = self.lock();
        // A version of its own for the compaction, so that even a client that has seen everything is too old.
        let version = inner.next_version();
        for shelf in &mut inner.shelves {
            shelf.history.clear();
            shelf.forgotten = version;
        }
        drop(inner);
        self.newest.send_replace(version);
    }

    pub(crate) fn fresh_suffix(&self) -> String {
        self.lock().ids.suffix()
    }

    pub(crate) fn version(&self) -> u64 {
        self.lock().version
    }

    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    pub(crate) fn dropped_changes(&self) -> u64 {
        self.dropped_changes.load(Ordering::Relaxed)
    }

    fn put(
        &self,
        inner: &mut Inner,
        resource: Resource,
        key: ObjectKey,
        before: Option<Arc<Value>>,
        object: Value,
    ) -> Arc<Value> {
        let version = inner.next_version();
        let after = Arc::new(with_version(object, version));
        inner
            .shelf_mut(resource)
            .objects
            .insert(key, Arc::clone(&after));
        self.record(
            inner,
            resource,
            Change {
                version,
                before,
                after: Arc::clone(&after),
                deleted: false,
            },
        );
        after
    }

    fn record(&self, inner: &mut Inner, resource: Resource, change: Change) {
        let (version, bound) = (change.version, inner.history_per_resource);
        let shelf = inner.shelf_mut(resource);
        shelf.history.push_back(change);
        while shelf.history.len() > bound {
            if let Some(oldest) = shelf.history.pop_front() {
                shelf.forgotten = oldest.version;
                self.dropped_changes.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.newest.send_replace(version);
    }

    /// A panic while the lock was held can only have come from a test's own assertion; the data is whole, since
    /// nothing between two assignments to it can fail.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Inner {
    version: u64,
    history_per_resource: usize,
    shelves: [Shelf; Resource::ALL.len()],
    ids: SplitMix64,
}

impl Inner {
    fn shelf(&self, resource: Resource) -> &Shelf {
        &self.shelves[resource as usize]
    }

    fn shelf_mut(&mut self, resource: Resource) -> &mut Shelf {
        &mut self.shelves[resource as usize]
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }
}

/// One resource. The history is per resource, as the watch cache's is, so that Leases do not push Nodes out of it.
#[derive(Default)]
struct Shelf {
    objects: BTreeMap<ObjectKey, Arc<Value>>,
    history: VecDeque<Change>,
    /// The newest version that is no longer in the history; a watch must start at it or later.
    forgotten: u64,
}

fn with_version(mut object: Value, version: u64) -> Value {
    object["metadata"]["resourceVersion"] = version.to_string().into();
    object
}
