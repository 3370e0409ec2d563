//! The member table: the truth about who is in the mesh, as this member holds it.
//!
//! A table of 5,000 stands in each of 5,000 members of a simulation, so what is held of a
//! member nobody is linked to takes 32 bytes: its record is shared with whoever told of it,
//! and what only neighbours and odd ones have stands aside.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;

use siphasher::sip::SipHasher13;
use swimlet_protocol::stream::{SYNC_RANGES, digest_of, range_of};
use swimlet_protocol::{
    Generation, Incarnation, MemberKey, MemberRecord, MemberState, Moment, Role, Zone,
};

use crate::constants::{MEMBERS_MAX, OBSERVERS};
use crate::names::{Commons, Directory, Id, KeyHash};
use crate::rings::Rings;

/// One member, as this one holds it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its key.
    pub key: MemberKey,
    /// What it says of itself.
    pub record: Arc<MemberRecord>,
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
    pub(crate) hint: Option<Arc<MemberRecord>>,
    /// A higher generation that its own word showed to be an older start; third parties
    /// still repeat it for a while.
    pub(crate) overruled: Option<Generation>,
    /// The link over which it confirmed its generation itself; 0 for none.
    pub(crate) confirmed_by: u64,
    /// How often it came back; see `foca_bridge`.
    pub(crate) epoch: u64,
}

/// The table. Holds at most [`MEMBERS_MAX`] members, each name once, and knows who of
/// them, and whether its owner, has a place on the rings.
#[derive(Debug)]
pub(crate) struct Table {
    directory: Directory,
    rings: Rings,
    /// By id.
    members: Vec<Option<Entry>>,
    /// What few members have: those that were linked to us, came back, or are hinted at.
    asides: BTreeMap<Id, Aside>,
    len: usize,
    /// Who is down or left, and since when.
    gone: BTreeMap<MemberKey, Moment>,
    addresses: Addresses,
    aggregators: Vec<MemberKey>,
    zones: Vec<Zone>,
    digest: u64,
}

/// What is held of every member.
#[derive(Debug)]
struct Entry {
    record: Arc<MemberRecord>,
    since: Moment,
    heard: Moment,
    incarnation: Incarnation,
    state: MemberState,
    /// Whether there is an [`Aside`].
    aside: bool,
}

/// The rest of a [`Member`], where it is not the usual.
#[derive(Debug, Default, PartialEq, Eq)]
struct Aside {
    last_contact: Option<Moment>,
    seen_at: Option<SocketAddr>,
    hint: Option<Arc<MemberRecord>>,
    overruled: Option<Generation>,
    confirmed_by: u64,
    epoch: u64,
}

/// Each address's last owner. An address stands for 32 bits of its hash under a secret; the
/// owner's record tells whether it is the address meant. Of two addresses that share
/// these bits the earlier one's next owner goes unnoticed, once in a million pairs of nodes.
#[derive(Debug)]
struct Addresses {
    owners: HashMap<u32, Id, KeyHash>,
    secret: u64,
}

/// Zones that are shared between records; more stay unshared. No provider has
/// as many in a region, and a cluster spans few regions.
const ZONES_MAX: usize = 64;

impl Member {
    /// A member heard of at `now`.
    pub(crate) fn new(
        key: MemberKey,
        record: Arc<MemberRecord>,
        incarnation: Incarnation,
        now: Moment,
    ) -> Self {
        let entry = Entry {
            record,
            since: now,
            heard: now,
            incarnation,
            state: MemberState::Alive,
            aside: false,
        };
        Self::join(key, entry, Aside::default())
    }

    /// Whether it is Down or Left.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        self.state.is_gone()
    }

    /// Its generation.
    #[must_use]
    pub fn generation(&self) -> Generation {
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

    fn join(key: MemberKey, entry: Entry, aside: Aside) -> Self {
        Self {
            key,
            record: entry.record,
            incarnation: entry.incarnation,
            state: entry.state,
            since: entry.since,
            heard: entry.heard,
            last_contact: aside.last_contact,
            seen_at: aside.seen_at,
            hint: aside.hint,
            overruled: aside.overruled,
            confirmed_by: aside.confirmed_by,
            epoch: aside.epoch,
        }
    }

    fn split(self) -> (Entry, Aside) {
        let aside = Aside {
            last_contact: self.last_contact,
            seen_at: self.seen_at,
            hint: self.hint,
            overruled: self.overruled,
            confirmed_by: self.confirmed_by,
            epoch: self.epoch,
        };
        let entry = Entry {
            record: self.record,
            since: self.since,
            heard: self.heard,
            incarnation: self.incarnation,
            state: self.state,
            aside: aside != Aside::default(),
        };
        (entry, aside)
    }
}

impl Entry {
    /// Its part of the digest. Gone members have none: tables forget them at
    /// different times, and nothing is to be synced about them but that they are gone.
    fn digest(&self, key: MemberKey) -> u64 {
        if self.state.is_gone() {
            0
        } else {
            digest_of(key, self.record.generation, self.incarnation, self.state)
        }
    }
}

impl Table {
    /// An empty table, on whose rings its owner has a place.
    pub(crate) fn new(owner: MemberKey, commons: Option<Commons>, secret: u64) -> Self {
        let mut table = Self {
            directory: Directory::new(commons, secret),
            rings: Rings::default(),
            members: Vec::new(),
            asides: BTreeMap::new(),
            len: 0,
            gone: BTreeMap::new(),
            addresses: Addresses {
                owners: HashMap::default(),
                secret,
            },
            aggregators: Vec::new(),
            zones: Vec::new(),
            digest: 0,
        };
        table.place(owner);
        table
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Members that are not gone.
    pub(crate) fn active(&self) -> usize {
        self.len - self.gone.len()
    }

    pub(crate) fn member(&self, key: MemberKey) -> Option<Member> {
        self.by_id(self.directory.names().id(key)?)
    }

    /// Whether nobody can be added.
    pub(crate) const fn is_full(&self) -> bool {
        self.len >= MEMBERS_MAX
    }

    pub(crate) fn contains(&self, key: MemberKey) -> bool {
        self.entry(key).is_some()
    }

    /// What a member is held to be.
    pub(crate) fn state(&self, key: MemberKey) -> Option<MemberState> {
        self.entry(key).map(|entry| entry.state)
    }

    /// Its generation, its incarnation and what it is held to be.
    pub(crate) fn standing(
        &self,
        key: MemberKey,
    ) -> Option<(Generation, Incarnation, MemberState)> {
        let entry = self.entry(key)?;
        Some((entry.record.generation, entry.incarnation, entry.state))
    }

    /// Whether this start of a member is known, at this incarnation or a higher one.
    pub(crate) fn holds(
        &self,
        key: MemberKey,
        record: &Arc<MemberRecord>,
        at: Incarnation,
    ) -> bool {
        self.entry(key).is_some_and(|entry| {
            let known = &entry.record;
            let same = Arc::ptr_eq(known, record)
                || (known.generation == record.generation
                    && known.role == record.role
                    && known.name == record.name);
            same && at <= entry.incarnation
        })
    }

    /// Whether the member confirmed over this link, or a later one, what is known of it, and
    /// nobody hints at anything else.
    pub(crate) fn is_settled(&self, key: MemberKey, link: u64) -> bool {
        let aside = self
            .directory
            .names()
            .id(key)
            .and_then(|id| self.asides.get(&id));
        aside.map_or(link == 0, |aside| {
            link <= aside.confirmed_by && aside.hint.is_none()
        })
    }

    /// What a member says of itself.
    pub(crate) fn record(&self, key: MemberKey) -> Option<&Arc<MemberRecord>> {
        self.entry(key).map(|entry| &entry.record)
    }

    /// Everybody, in the order of their keys.
    pub(crate) fn members(&self) -> impl Iterator<Item = Member> {
        let sorted = self.directory.names().sorted().iter();
        sorted.filter_map(|&id| self.by_id(id))
    }

    /// One of those that are not gone and that `free` lets pass, each as likely as the others.
    pub(crate) fn sample(
        &self,
        rng: &mut impl rand::Rng,
        free: impl Fn(MemberKey) -> bool,
    ) -> Option<MemberKey> {
        use rand::RngExt;
        use rand::seq::IteratorRandom;
        let names = self.directory.names();
        let fits = |id: Id| {
            let entry = self.members.get(id.index())?.as_ref()?;
            let key = names.key(id);
            (!entry.state.is_gone() && free(key)).then_some(key)
        };
        // Nearly all of a large mesh fit: looking at everybody is for the rest.
        for _ in 0..SAMPLE_TRIES {
            let at = rng.random_range(0..names.sorted().len().max(1));
            let drawn = names.sorted().get(at).and_then(|&id| fits(id));
            if drawn.is_some() {
                return drawn;
            }
        }
        let all = names.sorted().iter().filter_map(|&id| fits(id));
        all.choose(rng)
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

    /// The digest of each range of keys, by [`range_of`].
    pub(crate) fn ranges(&self) -> [u64; SYNC_RANGES] {
        let mut ranges = [0; SYNC_RANGES];
        let names = self.directory.names();
        for &id in names.sorted() {
            if let Some(Some(entry)) = self.members.get(id.index()) {
                let key = names.key(id);
                ranges[range_of(key)] ^= entry.digest(key);
            }
        }
        ranges
    }

    /// Gives a member, or the table's owner, its place on the rings. `false` if it had it.
    pub(crate) fn place(&mut self, key: MemberKey) -> bool {
        let id = self.directory.enter(key);
        self.rings.insert(id)
    }

    /// Takes a member's place on the rings away. `false` if it had none.
    pub(crate) fn displace(&mut self, key: MemberKey) -> bool {
        let Some(id) = self.directory.names().id(key) else {
            return false;
        };
        let had = self.rings.remove(id);
        self.leave_if_unknown(key);
        had
    }

    /// Who watches `subject`, gone or not; see [`Rings::observers_of`].
    pub(crate) fn observers_of(&self, subject: MemberKey) -> Vec<MemberKey> {
        self.rings.observers_of(self.directory.names(), subject)
    }

    /// How many watch a member and are not gone, if that shows without looking for them.
    pub(crate) fn observer_count(&self) -> Option<usize> {
        // All that have a place are there: the member itself, and the others.
        let all = self.gone.is_empty() && self.rings.len() == self.len + 1;
        all.then(|| self.len.min(OBSERVERS))
    }

    /// Whom `observer` watches, gone or not.
    pub(crate) fn subjects_of(&self, observer: MemberKey) -> Vec<MemberKey> {
        self.rings.subjects_of(self.directory.names(), observer)
    }

    /// Changes a member through `change`, keeping digest and indexes right.
    pub(crate) fn update<R>(
        &mut self,
        key: MemberKey,
        change: impl FnOnce(&mut Member) -> R,
    ) -> Option<R> {
        let id = self.directory.names().id(key)?;
        let slot = self.members.get_mut(id.index())?;
        let entry = slot.take()?;
        let (digested, was_gone) = (entry.digest(key), entry.state.is_gone());
        let aside = if entry.aside {
            self.asides.remove(&id).unwrap_or_default()
        } else {
            Aside::default()
        };
        let mut member = Member::join(key, entry, aside);
        let result = change(&mut member);
        let (entry, aside) = member.split();
        self.digest ^= digested ^ entry.digest(key);
        let (is_gone, since) = (entry.state.is_gone(), entry.since);
        if entry.aside {
            self.asides.insert(id, aside);
        }
        *slot = Some(entry);
        if is_gone {
            self.gone.insert(key, since);
        } else if was_gone {
            self.gone.remove(&key);
        }
        if was_gone != is_gone {
            self.index_aggregator(key);
        }
        Some(result)
    }

    /// A member was heard: as [`Table::update`], and cheaper.
    pub(crate) fn hear(&mut self, key: MemberKey, now: Moment) {
        if let Some(id) = self.directory.names().id(key)
            && let Some(Some(entry)) = self.members.get_mut(id.index())
        {
            entry.heard = now;
        }
    }

    /// A member answered over a link of ours: as [`Table::update`], and cheaper.
    pub(crate) fn note_contact(&mut self, key: MemberKey, now: Moment) {
        if let Some(id) = self.directory.names().id(key)
            && let Some(Some(entry)) = self.members.get_mut(id.index())
        {
            entry.aside = true;
            self.asides.entry(id).or_default().last_contact = Some(now);
        }
    }

    /// Adds a member that is not in the table. `false` if the table [is full](Table::is_full).
    pub(crate) fn insert(&mut self, member: Member) -> bool {
        if self.is_full() {
            return false;
        }
        let key = member.key;
        let (mut entry, aside) = member.split();
        // Whose record is shared already, its zone is too.
        if let Some(record) = Arc::get_mut(&mut entry.record) {
            record.zone = self.intern(std::mem::take(&mut record.zone));
        }
        let id = self.directory.enter(key);
        if id.index() >= self.members.len() {
            // Exactly: half of a doubled table would stay empty, in each of thousands.
            let end = self.directory.names().end();
            self.members.reserve_exact(end - self.members.len());
            self.members.resize_with(end, || None);
        }
        self.digest ^= entry.digest(key);
        if entry.aside {
            self.asides.insert(id, aside);
        }
        self.members[id.index()] = Some(entry);
        self.len += 1;
        self.index_aggregator(key);
        true
    }

    /// Forgets a member, which keeps its place on the rings.
    pub(crate) fn remove(&mut self, key: MemberKey) -> Option<Member> {
        let id = self.directory.names().id(key)?;
        let entry = self.members.get_mut(id.index())?.take()?;
        self.len -= 1;
        self.digest ^= entry.digest(key);
        self.gone.remove(&key);
        self.aggregators.retain(|&other| other != key);
        for address in entry.record.addresses.iter() {
            self.addresses.release(id, address);
        }
        let aside = self.asides.remove(&id).unwrap_or_default();
        self.leave_if_unknown(key);
        Some(Member::join(key, entry, aside))
    }

    /// The member that has been gone longest.
    pub(crate) fn longest_gone(&self) -> Option<MemberKey> {
        self.gone
            .iter()
            .min_by_key(|&(&key, &since)| (since, key))
            .map(|(&key, _)| key)
    }

    /// Takes note of the addresses a member's record claims; gives back those that belonged
    /// to others, with their owners. At most four per member are kept.
    pub(crate) fn claim_addresses(
        &mut self,
        key: MemberKey,
        old: &[SocketAddr],
        new: &[SocketAddr],
    ) -> Vec<(SocketAddr, MemberKey)> {
        let Some(id) = self.directory.names().id(key) else {
            return Vec::new();
        };
        for address in old.iter().filter(|address| !new.contains(address)) {
            self.addresses.release(id, address);
        }
        let mut conflicts = Vec::new();
        for &address in new {
            let before = self.addresses.claim(id, &address);
            let owner = before.filter(|&before| before != id).and_then(|before| {
                let entry = self.members.get(before.index())?.as_ref()?;
                let is_it = entry.record.addresses.contains(&address);
                is_it.then(|| self.directory.names().key(before))
            });
            conflicts.extend(owner.map(|owner| (address, owner)));
        }
        conflicts
    }

    fn entry(&self, key: MemberKey) -> Option<&Entry> {
        let id = self.directory.names().id(key)?;
        self.members.get(id.index())?.as_ref()
    }

    fn by_id(&self, id: Id) -> Option<Member> {
        let entry = self.members.get(id.index())?.as_ref()?;
        let aside = self.asides.get(&id).filter(|_| entry.aside);
        Some(Member {
            key: self.directory.names().key(id),
            record: Arc::clone(&entry.record),
            incarnation: entry.incarnation,
            state: entry.state,
            since: entry.since,
            heard: entry.heard,
            last_contact: aside.and_then(|aside| aside.last_contact),
            seen_at: aside.and_then(|aside| aside.seen_at),
            hint: aside.and_then(|aside| aside.hint.clone()),
            overruled: aside.and_then(|aside| aside.overruled),
            confirmed_by: aside.map_or(0, |aside| aside.confirmed_by),
            epoch: aside.map_or(0, |aside| aside.epoch),
        })
    }

    /// Lets go of a name that is neither in the table nor on the rings.
    fn leave_if_unknown(&mut self, key: MemberKey) {
        let id = self.directory.names().id(key);
        if id.is_some_and(|id| !self.rings.has(id)) && !self.contains(key) {
            self.directory.leave(key);
        }
    }

    fn index_aggregator(&mut self, key: MemberKey) {
        let entry = self.entry(key);
        let Some(entry) = entry.filter(|entry| entry.record.role == Role::Aggregator) else {
            return;
        };
        let is_gone = entry.state.is_gone();
        self.aggregators.retain(|&other| other != key);
        if !is_gone {
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

impl Addresses {
    /// Gives an address a new owner; tells whose the address was, or one that looks like it.
    fn claim(&mut self, id: Id, address: &SocketAddr) -> Option<Id> {
        self.owners.insert(self.tag(address), id)
    }

    /// Takes an address from its owner, if this is the one.
    fn release(&mut self, id: Id, address: &SocketAddr) {
        let tag = self.tag(address);
        if self.owners.get(&tag) == Some(&id) {
            self.owners.remove(&tag);
        }
    }

    fn tag(&self, address: &SocketAddr) -> u32 {
        let mut hasher = SipHasher13::new_with_keys(self.secret, 0);
        address.hash(&mut hasher);
        let [a, b, c, d, ..] = hasher.finish().to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

/// Draws before everybody is looked at: where half of the members fit, none of so many
/// does once in 65,536.
const SAMPLE_TRIES: u32 = 16;

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
        Member::new(
            MemberKey(i),
            Arc::new(record),
            Incarnation(0),
            Moment::ORIGIN,
        )
    }

    fn table() -> Table {
        Table::new(MemberKey(0), None, 7)
    }

    fn set(table: &mut Table, key: u64, state: MemberState) {
        table.update(MemberKey(key), |member| member.state = state);
    }

    #[test]
    fn the_digest_is_that_of_the_members_that_are_not_gone() {
        let (mut a, mut b) = (table(), table());
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
        let mut table = table();
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
    fn a_member_nobody_is_linked_to_takes_32_bytes() {
        assert_eq!(size_of::<Option<Entry>>(), 32);
    }

    /// Of a cluster whose nodes are replaced all the time only those that are there take memory.
    #[test]
    fn who_is_forgotten_leaves_nothing_behind() {
        let mut table = table();
        for i in 1..100 {
            assert!(table.insert(member(i, Role::Agent)));
            assert!(table.place(MemberKey(i)));
            table.note_contact(MemberKey(i), Moment::ORIGIN);
            if i > 10 {
                let gone = MemberKey(i - 10);
                assert!(table.displace(gone));
                assert!(table.remove(gone).is_some());
                assert_eq!(
                    (table.member(gone).map(|m| m.key), table.displace(gone)),
                    (None, false)
                );
            }
        }
        assert_eq!((table.len(), table.members().count()), (10, 10));
        assert_eq!(
            (table.members.len(), table.directory.names().end()),
            (12, 12)
        );
        assert_eq!(table.asides.len(), 10);
        assert_eq!(
            table.observers_of(MemberKey(95)).len(),
            10,
            "its owner is one of them"
        );
    }

    #[test]
    fn who_is_drawn_is_there_and_let_pass() {
        use rand::SeedableRng;
        let mut rng = rand::rngs::Xoshiro256PlusPlus::seed_from_u64(7);
        let mut table = table();
        for i in 1..=40 {
            assert!(table.insert(member(i, Role::Agent)));
            if i > 4 {
                set(&mut table, i, MemberState::Left);
            }
        }
        let mut drawn = BTreeMap::new();
        for _ in 0..300 {
            let key = table.sample(&mut rng, |key| key != MemberKey(2)).unwrap();
            *drawn.entry(key.0).or_insert(0) += 1;
        }
        assert_eq!(drawn.keys().copied().collect::<Vec<_>>(), [1, 3, 4]);
        assert!(drawn.values().all(|&times| times > 60), "{drawn:?}");
        assert_eq!(table.sample(&mut rng, |_| false), None);
    }

    #[test]
    fn an_address_has_one_owner() {
        let mut table = table();
        let address = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let (a, b) = (MemberKey(1), MemberKey(2));
        for (i, port) in [(1, 1), (2, 1)] {
            let mut member = member(i, Role::Agent);
            let record = Arc::make_mut(&mut member.record);
            record.addresses = swimlet_protocol::Bounded::fill(&mut [address(port)].into_iter());
            assert!(table.insert(member));
        }
        assert_eq!(table.claim_addresses(a, &[], &[address(1)]), []);
        assert_eq!(
            table.claim_addresses(b, &[], &[address(1)]),
            [(address(1), a)]
        );
        assert_eq!(table.claim_addresses(a, &[address(1)], &[address(2)]), []);
        assert_eq!(table.claim_addresses(b, &[address(1)], &[address(1)]), []);
    }
}
