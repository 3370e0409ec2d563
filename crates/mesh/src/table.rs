//! The member table: the truth about who is in the mesh, as this member holds it.
//!
//! Keys are keyed hashes of names already, so a map ordered by them is indexed by
//! hash and still iterates the same way in every run.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use swimlet_protocol::stream::digest_of;
use swimlet_protocol::{
    Generation, Incarnation, MemberKey, MemberRecord, MemberState, Moment, Role, Zone,
};

use crate::constants::MEMBERS_MAX;

/// One member, as this one holds it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its key.
    pub key: MemberKey,
    /// What it says of itself.
    pub record: MemberRecord,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// What it is held to be.
    pub state: MemberState,
    /// Since when.
    pub since: Moment,
    /// When anyone is known to have heard it last.
    pub heard: Moment,
    /// When it last answered over a link of ours, in this generation.
    pub last_contact: Option<Moment>,
    /// Where its packets came from over its last link, if it ever had one with us.
    pub seen_at: Option<SocketAddr>,
    /// What a third party said of a later start of it; to be confirmed by itself.
    pub(crate) hint: Option<MemberRecord>,
    /// A higher generation that its own word showed to be an older start; third parties
    /// still repeat it for a while.
    pub(crate) overruled: Option<Generation>,
    /// The link over which it confirmed its generation itself; 0 for none.
    pub(crate) confirmed_by: u64,
    /// How often it came back; see `foca_bridge`.
    pub(crate) epoch: u64,
}

/// The table. Holds at most [`MEMBERS_MAX`] members, each name once.
#[derive(Debug, Default)]
pub(crate) struct Table {
    members: BTreeMap<MemberKey, Member>,
    /// Who is down or left, and since when.
    gone: BTreeMap<MemberKey, Moment>,
    /// Each address's last owner.
    addresses: BTreeMap<SocketAddr, MemberKey>,
    aggregators: Vec<MemberKey>,
    zones: Vec<Zone>,
    digest: u64,
}

/// Zones that are shared between records; more stay unshared. No provider has
/// as many in a region, and a cluster spans few regions.
const ZONES_MAX: usize = 64;

impl Member {
    /// A member heard of at `now`.
    pub(crate) fn new(
        key: MemberKey,
        record: MemberRecord,
        incarnation: Incarnation,
        now: Moment,
    ) -> Self {
        Self {
            key,
            record,
            incarnation,
            state: MemberState::Alive,
            since: now,
            heard: now,
            last_contact: None,
            seen_at: None,
            hint: None,
            overruled: None,
            confirmed_by: 0,
            epoch: 0,
        }
    }

    /// Whether it is Down or Left.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self.state, MemberState::Down | MemberState::Left)
    }

    /// Its generation.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.record.generation
    }

    /// Where to try it, best first: what is hinted of a later start, what it says of
    /// itself, and where it was seen.
    pub(crate) fn dial_addresses(&self) -> Vec<SocketAddr> {
        let mut addresses: Vec<SocketAddr> = Vec::new();
        let hinted = self.hint.iter().flat_map(|hint| hint.addresses.iter());
        for &address in hinted
            .chain(self.record.addresses.iter())
            .chain(&self.seen_at)
        {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses
    }

    /// Its part of the digest. Gone members have none: tables forget them at
    /// different times, and nothing is to be synced about them but that they are gone.
    fn digest(&self) -> u64 {
        if self.is_gone() {
            0
        } else {
            digest_of(
                self.key,
                self.record.generation,
                self.incarnation,
                self.state,
            )
        }
    }
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn member(&self, key: MemberKey) -> Option<&Member> {
        self.members.get(&key)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// The aggregators that are not gone, in the order of their keys.
    pub(crate) fn aggregators(&self) -> &[MemberKey] {
        &self.aggregators
    }

    /// Who is gone, and since when.
    pub(crate) fn gone(&self) -> impl Iterator<Item = (MemberKey, Moment)> {
        self.gone.iter().map(|(&key, &since)| (key, since))
    }

    /// The XOR over the members' digests.
    pub(crate) const fn digest(&self) -> u64 {
        self.digest
    }

    /// Changes a member through `change`, keeping digest and indexes right.
    pub(crate) fn update<R>(
        &mut self,
        key: MemberKey,
        change: impl FnOnce(&mut Member) -> R,
    ) -> Option<R> {
        let member = self.members.get_mut(&key)?;
        let before = (member.digest(), member.is_gone());
        let result = change(member);
        self.digest ^= before.0 ^ member.digest();
        if member.is_gone() {
            self.gone.insert(key, member.since);
        } else {
            self.gone.remove(&key);
        }
        if before.1 != member.is_gone() {
            self.index_aggregator(key);
        }
        Some(result)
    }

    /// Adds a member that is not in the table. `false` if the table is full; the caller
    /// may [`Table::remove`] the [`Table::longest_gone`] first.
    pub(crate) fn insert(&mut self, mut member: Member) -> bool {
        if self.members.len() >= MEMBERS_MAX {
            return false;
        }
        member.record.zone = self.intern(member.record.zone);
        self.digest ^= member.digest();
        let key = member.key;
        self.members.insert(key, member);
        self.index_aggregator(key);
        true
    }

    /// Forgets a member.
    pub(crate) fn remove(&mut self, key: MemberKey) -> Option<Member> {
        let member = self.members.remove(&key)?;
        self.digest ^= member.digest();
        self.gone.remove(&key);
        self.aggregators.retain(|&other| other != key);
        for address in member.record.addresses.iter() {
            if self.addresses.get(address) == Some(&key) {
                self.addresses.remove(address);
            }
        }
        Some(member)
    }

    /// The member that has been gone longest.
    pub(crate) fn longest_gone(&self) -> Option<MemberKey> {
        self.gone
            .iter()
            .min_by_key(|&(&key, &since)| (since, key))
            .map(|(&key, _)| key)
    }

    /// Takes note of the addresses a member claims; gives back those that belonged to
    /// others, with their owners. At most four per member are kept.
    pub(crate) fn claim_addresses(
        &mut self,
        key: MemberKey,
        old: &[SocketAddr],
        new: &[SocketAddr],
    ) -> Vec<(SocketAddr, MemberKey)> {
        for address in old {
            if !new.contains(address) && self.addresses.get(address) == Some(&key) {
                self.addresses.remove(address);
            }
        }
        let mut conflicts = Vec::new();
        for &address in new {
            if let Some(before) = self.addresses.insert(address, key)
                && before != key
            {
                conflicts.push((address, before));
            }
        }
        conflicts
    }

    fn index_aggregator(&mut self, key: MemberKey) {
        self.aggregators.retain(|&other| other != key);
        let is_one = self
            .members
            .get(&key)
            .is_some_and(|member| member.record.role == Role::Aggregator && !member.is_gone());
        if is_one {
            let at = self.aggregators.partition_point(|&other| other < key);
            self.aggregators.insert(at, key);
        }
    }

    fn intern(&mut self, zone: Zone) -> Zone {
        if let Some(known) = self.zones.iter().find(|&known| *known == zone) {
            return known.clone();
        }
        if self.zones.len() < ZONES_MAX {
            self.zones.push(zone.clone());
        }
        zone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(i: u64, role: Role) -> Member {
        let record = MemberRecord {
            role,
            name: format!("m{i}").parse().unwrap(),
            generation: Generation(i),
            zone: Zone::default(),
            addresses: swimlet_protocol::Bounded::default(),
            kubelet_port: 0,
        };
        Member::new(MemberKey(i), record, Incarnation(0), Moment::ORIGIN)
    }

    fn set(table: &mut Table, key: u64, state: MemberState) {
        table.update(MemberKey(key), |member| member.state = state);
    }

    #[test]
    fn the_digest_is_that_of_the_members_that_are_not_gone() {
        let (mut a, mut b) = (Table::default(), Table::default());
        for i in 1..=3 {
            assert!(a.insert(member(i, Role::Agent)));
        }
        for i in [3, 1] {
            assert!(b.insert(member(i, Role::Agent)));
        }
        assert_ne!(a.digest(), b.digest());
        set(&mut a, 1, MemberState::Suspect);
        set(&mut a, 2, MemberState::Down);
        assert_eq!(
            a.digest(),
            b.digest(),
            "suspicion is local, the dead leave no trace"
        );
        set(&mut a, 2, MemberState::Alive);
        assert_ne!(a.digest(), b.digest());
        a.remove(MemberKey(2));
        assert_eq!(a.digest(), b.digest());
    }

    #[test]
    fn aggregators_are_those_that_are_not_gone() {
        let mut table = Table::default();
        assert!(table.insert(member(7, Role::Aggregator)));
        assert!(table.insert(member(5, Role::Aggregator)));
        assert!(table.insert(member(6, Role::Agent)));
        assert_eq!(table.aggregators(), [MemberKey(5), MemberKey(7)]);
        set(&mut table, 5, MemberState::Left);
        assert_eq!(table.aggregators(), [MemberKey(7)]);
        assert_eq!(table.longest_gone(), Some(MemberKey(5)));
        set(&mut table, 5, MemberState::Alive);
        assert_eq!(table.aggregators(), [MemberKey(5), MemberKey(7)]);
        assert_eq!(table.longest_gone(), None);
    }

    #[test]
    fn an_address_has_one_owner() {
        let mut table = Table::default();
        let address = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let (a, b) = (MemberKey(1), MemberKey(2));
        assert_eq!(table.claim_addresses(a, &[], &[address(1)]), []);
        assert_eq!(
            table.claim_addresses(b, &[], &[address(1)]),
            [(address(1), a)]
        );
        assert_eq!(table.claim_addresses(a, &[address(1)], &[address(2)]), []);
        assert_eq!(table.claim_addresses(b, &[address(1)], &[address(1)]), []);
    }
}
