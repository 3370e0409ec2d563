//! The API server, as far as liveness sees it: Node objects with their Ready condition,
//! Leases, preconditions, and the election's Lease.

use std::net::IpAddr;
use std::time::Duration;

use swimlet_cluster::election::state::{Action, Record, Seen, Timing};
use swimlet_protocol::{ClusterId, MemberKey, Moment, NodeName, Role, Zone};
use swimlet_verdict::{
    Decision, LeaseRead, NodeRef, NodeSeen, NodeUid, ReadyCondition, ReadyStatus, WriteOutcome,
};

/// The kubelet's port.
pub(crate) const KUBELET_PORT: u16 = 10_250;
/// The reason that a kubelet gives.
const KUBELET_READY: &str = "KubeletReady";
/// The reason that the node lifecycle controller gives.
const IN_TREE_REASON: &str = "NodeStatusUnknown";

/// The server and what it stores.
#[derive(Debug, Default)]
pub(crate) struct Api {
    /// By node id.
    pub(crate) objects: Vec<Option<Object>>,
    /// The last resourceVersion that was given out.
    version: u64,
    election: Option<(Record, u64)>,
    /// Counts the writes of the election's Lease: its opaque times.
    renewals: i64,
    /// Faults that keep it from answering.
    pub(crate) down: u32,
    /// How much longer it takes.
    pub(crate) slow: Duration,
    /// How much later watches are told.
    pub(crate) watch_lag: Duration,
    /// Faults that put our pause annotation on the Lease.
    pub(crate) paused: u32,
}

/// A Node object, and the Lease beside it.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) node: NodeRef,
    pub(crate) key: MemberKey,
    pub(crate) zone: Zone,
    pub(crate) address: IpAddr,
    pub(crate) version: u64,
    pub(crate) ready: Option<ReadyCondition>,
    pub(crate) hold: u32,
    pub(crate) deleting: bool,
    pub(crate) agentless: bool,
    /// Renewals of its Lease; zero: there is none.
    pub(crate) renewed: u64,
    /// `nodeLeaseDurationSeconds`.
    pub(crate) lease: Option<Duration>,
    /// When the kubelet last wrote the Node's status.
    pub(crate) kubelet_wrote: Option<Moment>,
    /// When anything of the kubelet's was last seen to change: the in-tree controller's clock.
    pub(crate) beat: Moment,
}

/// What becomes of a kubelet's status patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// It was stored; `Some(ours)` if it took an Unknown back.
    Stored { took_back: Option<bool> },
    /// There is no such Node.
    Gone,
}

/// A zone's name.
pub(crate) fn zone(zone: u16) -> Zone {
    // Letters and digits are a zone's name.
    format!("zone-{zone}").parse().unwrap_or_default()
}

/// A node's UID in its `n`th life.
fn uid(name: &NodeName, life: u32) -> NodeUid {
    NodeUid::from(format!("{name}-{life}"))
}

impl Object {
    /// The object as a watch or a read shows it.
    pub(crate) fn seen(&self) -> NodeSeen {
        NodeSeen {
            node: self.node.clone(),
            key: self.key,
            zone: self.zone.clone(),
            addresses: vec![self.address],
            kubelet_port: if self.ready.is_some() {
                KUBELET_PORT
            } else {
                0
            },
            ready: self.ready.clone(),
            hold: self.hold > 0,
            deleting: self.deleting,
            lifecycle: Vec::new(),
            agentless: self.agentless,
        }
    }
}

impl Api {
    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    pub(crate) fn object(&self, node: usize) -> Option<&Object> {
        self.objects.get(node)?.as_ref()
    }

    pub(crate) fn object_mut(&mut self, node: usize) -> Option<&mut Object> {
        self.objects.get_mut(node)?.as_mut()
    }

    /// A change that is neither the kubelet's nor ours.
    pub(crate) fn touch(&mut self, node: usize, change: impl FnOnce(&mut Object)) {
        let version = self.next_version();
        if let Some(object) = self.object_mut(node) {
            change(object);
            object.version = version;
        }
    }

    /// A Node object is created, for the `life`th time under this name.
    pub(crate) fn create(&mut self, node: usize, now: Moment, new: New<'_>) {
        let object = Object {
            node: NodeRef {
                name: new.name.clone(),
                uid: uid(new.name, new.life),
            },
            key: MemberKey::of(new.cluster, Role::Agent, new.name),
            zone: zone(new.zone),
            address: new.address,
            version: self.next_version(),
            ready: None,
            hold: 0,
            deleting: false,
            agentless: new.agentless,
            renewed: 0,
            lease: new.lease,
            kubelet_wrote: None,
            beat: now,
        };
        if self.objects.len() <= node {
            self.objects.resize(node + 1, None);
        }
        self.objects[node] = Some(object);
    }

    /// A kubelet renews its Lease.
    pub(crate) fn renew(&mut self, node: usize, now: Moment) {
        self.touch(node, |object| {
            object.renewed += 1;
            object.beat = now;
        });
    }

    /// A kubelet writes its Ready condition, whole and without a precondition.
    pub(crate) fn report(
        &mut self,
        node: usize,
        now: Moment,
        address: IpAddr,
        clock_us: i64,
    ) -> Reported {
        let version = self.next_version();
        let Some(object) = self.object_mut(node) else {
            return Reported::Gone;
        };
        let before = object.ready.take();
        let second = clock_us - clock_us.rem_euclid(1_000_000);
        let changed = before
            .as_ref()
            .is_none_or(|ready| ready.status != ReadyStatus::True);
        let transition = match &before {
            Some(ready) if !changed => ready.transition,
            _ => Some(second),
        };
        object.ready = Some(ReadyCondition {
            status: ReadyStatus::True,
            reason: KUBELET_READY.to_owned(),
            heartbeat: Some(second),
            transition,
            ours: false,
        });
        object.address = address;
        object.version = version;
        object.kubelet_wrote = Some(now);
        object.beat = now;
        let took_back = before
            .filter(|ready| ready.status == ReadyStatus::Unknown)
            .map(|ready| ready.ours);
        Reported::Stored { took_back }
    }

    /// Whether a kubelet at that address that looks at its Node finds something to put right.
    pub(crate) fn differs(&self, node: usize, address: IpAddr) -> bool {
        self.object(node).is_some_and(|object| {
            let ready = object.ready.as_ref();
            object.address != address || ready.is_none_or(|ready| ready.status != ReadyStatus::True)
        })
    }

    /// A Node object is deleted.
    pub(crate) fn delete(&mut self, node: usize) -> Option<NodeRef> {
        self.next_version();
        let object = self.objects.get_mut(node)?.take()?;
        Some(object.node)
    }

    /// The node lifecycle controller's pass over one Node.
    pub(crate) fn in_tree(&mut self, node: usize, now: Moment, grace: Duration) -> bool {
        let Some(object) = self.object(node) else {
            return false;
        };
        let due = now.since(object.beat) > grace
            && object
                .ready
                .as_ref()
                .is_some_and(|ready| ready.status != ReadyStatus::Unknown);
        if due {
            let second = clock(now, 0);
            self.touch(node, |object| {
                if let Some(ready) = &mut object.ready {
                    ready.status = ReadyStatus::Unknown;
                    ready.reason = IN_TREE_REASON.to_owned();
                    ready.transition = Some(second - second.rem_euclid(1_000_000));
                    ready.ours = false;
                }
            });
        }
        due
    }

    /// Our patch of one condition, under the preconditions of UID and resourceVersion.
    pub(crate) fn patch(
        &mut self,
        node: usize,
        now: Moment,
        decision: &Decision,
        version: u64,
    ) -> WriteOutcome {
        let Some(object) = self.object(node) else {
            return WriteOutcome::Gone;
        };
        if object.node.uid != decision.node.uid {
            return WriteOutcome::Conflict;
        }
        if object.version != version {
            return WriteOutcome::Conflict;
        }
        let Some(reason) = decision.verdict.reason() else {
            return WriteOutcome::Superseded;
        };
        let second = clock(now, 0);
        self.touch(node, |object| {
            if let Some(ready) = &mut object.ready {
                ready.status = ReadyStatus::Unknown;
                ready.reason = reason.to_owned();
                ready.transition = Some(second - second.rem_euclid(1_000_000));
                ready.ours = true;
            }
        });
        WriteOutcome::Written
    }

    /// A live read of a node's Lease. It goes by the name, so after a replacement it is the
    /// new object's; a deleted Node's is collected with it.
    pub(crate) fn lease(&self, node: usize) -> LeaseRead {
        match self.object(node) {
            Some(object) if object.renewed > 0 => LeaseRead::Renewed {
                fingerprint: object.renewed ^ fingerprint(object.node.uid.as_str()),
                duration: object.lease,
            },
            _ => LeaseRead::None,
        }
    }

    /// A call of the election. Gives back what the caller sees and the version it may write
    /// over next.
    pub(crate) fn elect(
        &mut self,
        me: &str,
        timing: Timing,
        action: Action,
        base: u64,
    ) -> (Seen, u64) {
        match (action, &self.election) {
            (Action::Read, Some((record, version))) => (Seen::Record(record.clone()), *version),
            (Action::Read, None) => (Seen::Absent, 0),
            (Action::Create, Some(_)) => (Seen::Conflict, base),
            (Action::Create, None) => self.store_election(me, timing, None, Action::Acquire),
            (Action::Sleep(_) | Action::Stopped, _) => (Seen::Failed { after: None }, base),
            (_, None) => (Seen::Absent, 0),
            (_, Some((_, version))) if *version != base => (Seen::Conflict, base),
            (_, Some((record, _))) => {
                let old = record.clone();
                self.store_election(me, timing, Some(old), action)
            }
        }
    }

    fn store_election(
        &mut self,
        me: &str,
        timing: Timing,
        old: Option<Record>,
        action: Action,
    ) -> (Seen, u64) {
        self.renewals += 1;
        let now = Some(self.renewals);
        let transitions = old.as_ref().map_or(0, |old| old.transitions);
        let released = action == Action::Release;
        let record = Record {
            holder: if released {
                String::new()
            } else {
                me.to_owned()
            },
            duration: if released {
                Duration::from_secs(1)
            } else {
                timing.lease
            },
            renewed: now,
            acquired: match (&old, action) {
                (Some(old), Action::Renew) => old.acquired,
                _ => now,
            },
            transitions: transitions + i32::from(action == Action::Acquire),
        };
        let version = self.next_version();
        self.election = Some((record.clone(), version));
        (Seen::Record(record), version)
    }
}

/// What a Node object is created from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct New<'a> {
    pub(crate) cluster: &'a ClusterId,
    pub(crate) name: &'a NodeName,
    pub(crate) life: u32,
    pub(crate) zone: u16,
    pub(crate) address: IpAddr,
    pub(crate) agentless: bool,
    pub(crate) lease: Option<Duration>,
}

/// A wall clock that is so many milliseconds ahead, in µs since the Unix epoch.
pub(crate) fn clock(now: Moment, ahead_ms: i64) -> i64 {
    /// Some day in 2026, so that clocks may step back by decades.
    const EPOCH_US: i64 = 1_767_225_600_000_000;
    let passed = i64::try_from(now.as_micros()).unwrap_or(i64::MAX / 4);
    EPOCH_US + passed + ahead_ms * 1_000
}

fn fingerprint(uid: &str) -> u64 {
    let mut trace = crate::trace::Trace::new(0);
    trace.text(uid);
    trace.value()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment::from_micros(5_000_000);

    fn api() -> Api {
        let mut api = Api::default();
        let cluster: ClusterId = "test".parse().unwrap();
        let name: NodeName = "a".parse().unwrap();
        let new = New {
            cluster: &cluster,
            name: &name,
            life: 1,
            zone: 0,
            address: [10, 0, 0, 1].into(),
            agentless: false,
            lease: Some(Duration::from_secs(40)),
        };
        api.create(0, NOW, new);
        api
    }

    /// Guards that a candidate writes only over what it has read.
    #[test]
    fn the_elections_lease_is_guarded_by_its_version() {
        let mut api = api();
        let timing = Timing::DEFAULT;
        assert_eq!(api.elect("a", timing, Action::Read, 0).0, Seen::Absent);
        let (_, version) = api.elect("a", timing, Action::Create, 0);
        assert_eq!(api.elect("b", timing, Action::Create, 0).0, Seen::Conflict);
        assert_eq!(api.elect("b", timing, Action::Acquire, 0).0, Seen::Conflict);
        let (seen, _) = api.elect("a", timing, Action::Renew, version);
        assert!(matches!(seen, Seen::Record(record) if record.holder == "a"));
        let (seen, _) = api.elect("a", timing, Action::Release, version);
        assert_eq!(seen, Seen::Conflict, "it was renewed since");
    }

    /// Guards that a kubelet's word over an Unknown is told apart by whose it was.
    #[test]
    fn a_kubelet_takes_an_unknown_back() {
        let mut api = api();
        let stored = |took_back| Reported::Stored { took_back };
        let at = IpAddr::from([10, 0, 0, 1]);
        assert!(api.differs(0, at));
        assert_eq!(api.report(0, NOW, at, clock(NOW, 0)), stored(None));
        assert!(!api.differs(0, at));
        let later = NOW + Duration::from_secs(60);
        assert!(api.in_tree(0, later, Duration::from_secs(50)));
        assert!(!api.in_tree(0, later, Duration::from_secs(50)), "once");
        assert!(api.differs(0, at));
        let took_back = stored(Some(false));
        assert_eq!(api.report(0, later, at, clock(later, 0)), took_back);
        assert_eq!(api.report(7, later, at, 0), Reported::Gone);
    }
}
