//! foca beneath the member table.
//!
//! foca holds the member list, decides which of two words about a member takes
//! precedence (SWIM §4.2), and owns our own incarnation and the rule by which a
//! suspicion raises it. Everything that travels is ours, so its packets stay in here:
//!
//! - **Suspect never enters it**, except about ourselves: it would run the timer of
//!   the accuser alone. Down enters only after our own rule.
//! - Its timers are ignored, because its probe cycle inserts Suspect by itself; the
//!   one exception is handed back when the table forgets a member.
//! - Down is final for an identity in foca, and no incarnation beats it. A member
//!   that comes back therefore gets a new *epoch*, and with it a new identity.
//! - It looks through its whole list at each change, and a list stands in each of
//!   thousands of members of a simulation. So a member is listed from the second word
//!   about it on: any word takes precedence over the first, that it lives and was never
//!   suspected, whether foca knows that one or not.
//!
//! docs/adr/0001 says what would make it go.

use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use bytes::{Buf, BufMut};
use foca::{
    Codec, Config, Foca, Header, Identity, Member, NoCustomBroadcast, Notification, Runtime, State,
    Timer,
};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use swimlet_protocol::{Incarnation, MemberKey};

/// foca's member list and our own incarnation.
pub(crate) struct Ledger {
    foca: Foca<Id, Tap, Xoshiro256PlusPlus, NoCustomBroadcast>,
    own: Incarnation,
    errors: u64,
}

/// A member as foca knows it: 16 bytes, because it copies them often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Id {
    key: MemberKey,
    /// Grows each time the member comes back; see the module's head.
    epoch: u64,
}

impl Ledger {
    pub(crate) fn new(me: MemberKey, seed: u64) -> Self {
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        Self {
            foca: Foca::new(Id { key: me, epoch: 0 }, config(), rng, Tap),
            own: Incarnation(0),
            errors: 0,
        }
    }

    /// Our own incarnation.
    pub(crate) const fn incarnation(&self) -> Incarnation {
        self.own
    }

    /// Errors foca gave back so far.
    pub(crate) const fn errors(&self) -> u64 {
        self.errors
    }

    /// Somebody suspects us at this incarnation: raises ours if that refutes it.
    /// `None` if it is refuted already, or if no higher incarnation exists.
    pub(crate) fn refute(&mut self, accused_at: Incarnation) -> Option<Incarnation> {
        // At the end of the range foca would declare itself defunct.
        if accused_at.max(self.own).0 == u16::MAX {
            return None;
        }
        let me = *self.foca.identity();
        self.apply(Member::new(me, accused_at.0, State::Suspect));
        // The incarnation shows only in the head of a packet.
        let mut out = Outlet::default();
        if self.foca.announce(me, &mut out).is_err() {
            self.errors += 1;
        }
        let now = Incarnation(out.incarnation?);
        let raised = now > self.own;
        self.own = now;
        raised.then_some(now)
    }

    /// A member lives, in this epoch and at this incarnation. `false` if what is
    /// known takes precedence.
    pub(crate) fn alive(&mut self, key: MemberKey, epoch: u64, at: Incarnation) -> bool {
        if (epoch, at) == (0, Incarnation(0)) && self.standing(key).is_none() {
            return true;
        }
        let id = Id { key, epoch };
        self.apply(Member::new(id, at.0, State::Alive));
        self.standing(key).is_some_and(|now| {
            *now.id() == id && now.incarnation() == at.0 && now.state() == State::Alive
        })
    }

    /// A member is down. `false` if it was, or if a later epoch is known.
    pub(crate) fn down(&mut self, key: MemberKey, epoch: u64, at: Incarnation) -> bool {
        let was = self
            .standing(key)
            .is_some_and(|now| now.state() == State::Down);
        let id = Id { key, epoch };
        self.apply(Member::new(id, at.0, State::Down));
        !was && self
            .standing(key)
            .is_some_and(|now| *now.id() == id && now.state() == State::Down)
    }

    /// Removes a member.
    pub(crate) fn forget(&mut self, key: MemberKey, epoch: u64) {
        if self.standing(key).is_none() {
            return;
        }
        // Only who is down is removed.
        self.apply(Member::down(Id { key, epoch }));
        let timer = Timer::RemoveDown(Id { key, epoch });
        if self.foca.handle_timer(timer, Outlet::default()).is_err() {
            self.errors += 1;
        }
    }

    fn apply(&mut self, update: Member<Id>) {
        // Without broadcast: what foca would queue nobody would ever send.
        let applied = self
            .foca
            .apply_many(std::iter::once(update), false, Outlet::default());
        if applied.is_err() {
            self.errors += 1;
        }
    }

    fn standing(&self, key: MemberKey) -> Option<&Member<Id>> {
        self.foca
            .iter_membership_state()
            .find(|member| member.id().key == key)
    }
}

impl Identity for Id {
    type Addr = MemberKey;

    fn renew(&self) -> Option<Self> {
        None
    }

    fn addr(&self) -> MemberKey {
        self.key
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.epoch > adversary.epoch
    }
}

/// Every period is off, and none of the timers that remain is ever handed back.
fn config() -> Config {
    Config {
        probe_period: Duration::from_secs(2),
        probe_rtt: Duration::from_secs(1),
        num_indirect_probes: NonZeroUsize::MIN,
        max_transmissions: NonZeroU8::MIN,
        suspect_to_down_after: Duration::from_secs(60),
        remove_down_after: None,
        // Room for the head that `Tap` writes.
        max_packet_size: NonZeroUsize::MIN.saturating_add(15),
        notify_down_members: false,
        periodic_announce: None,
        periodic_announce_to_down_members: None,
        periodic_gossip: None,
    }
}

/// Writes of a packet only what is wanted of it: the sender's incarnation.
struct Tap;

/// Members and packets of foca's own form are not spoken in this mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("foca's own packets are not spoken in this mesh")]
struct NotSpoken;

impl Codec<Id> for Tap {
    type Error = NotSpoken;

    fn encode_header(
        &mut self,
        header: &Header<Id>,
        mut buf: impl BufMut,
    ) -> Result<(), NotSpoken> {
        if buf.remaining_mut() < size_of::<u16>() {
            return Err(NotSpoken);
        }
        buf.put_u16(header.src_incarnation);
        Ok(())
    }

    fn decode_header(&mut self, _: impl Buf) -> Result<Header<Id>, NotSpoken> {
        Err(NotSpoken)
    }

    fn encode_member(&mut self, _: &Member<Id>, _: impl BufMut) -> Result<(), NotSpoken> {
        Err(NotSpoken)
    }

    fn decode_member(&mut self, _: impl Buf) -> Result<Member<Id>, NotSpoken> {
        Err(NotSpoken)
    }
}

/// Takes what foca wants done, and does none of it.
#[derive(Default)]
struct Outlet {
    incarnation: Option<u16>,
}

impl Runtime<Id> for Outlet {
    fn notify(&mut self, _: Notification<'_, Id>) {}

    fn send_to(&mut self, _: Id, mut data: &[u8]) {
        self.incarnation = data.try_get_u16().ok();
    }

    fn submit_after(&mut self, _: Timer<Id>, _: Duration) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MemberKey = MemberKey(1);
    const B: MemberKey = MemberKey(2);

    fn ledger() -> Ledger {
        Ledger::new(MemberKey(9), 7)
    }

    #[test]
    fn a_suspicion_is_refuted_once_and_an_old_one_not_again() {
        let mut ledger = ledger();
        // With and without anybody to tell.
        for peers in [0, 1] {
            if peers == 1 {
                assert!(ledger.alive(A, 0, Incarnation(0)));
            }
            let own = ledger.incarnation();
            let raised = Incarnation(own.0 + 1);
            assert_eq!(ledger.refute(own), Some(raised));
            assert_eq!(ledger.refute(own), None, "already refuted");
            assert_eq!(ledger.incarnation(), raised);
        }
        assert_eq!(
            ledger.refute(Incarnation(40)),
            Some(Incarnation(41)),
            "outbids a lie"
        );
        assert_eq!(
            ledger.refute(Incarnation(u16::MAX)),
            None,
            "nothing left to outbid it"
        );
        assert_eq!(ledger.errors(), 0);
    }

    #[test]
    fn down_is_final_within_an_epoch_and_ends_with_the_next() {
        let mut ledger = ledger();
        assert!(ledger.alive(A, 0, Incarnation(3)));
        assert!(!ledger.alive(A, 0, Incarnation(2)), "an older word");
        assert!(ledger.alive(B, 0, Incarnation(1)));
        assert_eq!(ledger.foca.num_members(), 2);
        assert!(ledger.down(A, 0, Incarnation(3)));
        assert!(!ledger.down(A, 0, Incarnation(3)), "not news");
        assert!(
            !ledger.alive(A, 0, Incarnation(4)),
            "no incarnation beats down"
        );
        assert_eq!(ledger.foca.num_members(), 1);
        assert!(ledger.alive(A, 1, Incarnation(4)), "the next epoch does");
        assert!(
            !ledger.down(A, 0, Incarnation(9)),
            "late news of the old one"
        );
        assert_eq!(ledger.foca.num_members(), 2);
        assert_eq!(ledger.errors(), 0);
    }

    #[test]
    fn a_member_is_listed_from_the_second_word_about_it_on() {
        let mut ledger = ledger();
        for key in 1..=4 {
            assert!(ledger.alive(MemberKey(key), 0, Incarnation(0)));
        }
        assert_eq!(ledger.foca.iter_membership_state().len(), 0);
        assert!(ledger.alive(A, 0, Incarnation(1)));
        assert!(!ledger.alive(A, 0, Incarnation(0)), "the first word again");
        assert!(ledger.down(B, 0, Incarnation(0)));
        assert!(!ledger.alive(B, 0, Incarnation(0)), "it was down since");
        assert_eq!(ledger.foca.iter_membership_state().len(), 2);
        for key in 1..=4 {
            ledger.forget(MemberKey(key), 0);
        }
        assert_eq!(ledger.foca.iter_membership_state().len(), 0);
        assert_eq!(ledger.errors(), 0);
    }

    #[test]
    fn a_forgotten_member_takes_no_memory() {
        let mut ledger = ledger();
        for epoch in 0..400 {
            assert!(ledger.alive(A, epoch, Incarnation(0)));
            assert!(ledger.down(A, epoch, Incarnation(0)));
        }
        assert_eq!(ledger.foca.iter_membership_state().len(), 1);
        ledger.forget(A, 399);
        assert_eq!(ledger.foca.iter_membership_state().len(), 0);
        assert_eq!(ledger.errors(), 0);
    }
}
