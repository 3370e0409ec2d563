//! The trace hash: every event that was handled, in one number.

use swimlet_protocol::frame::Finding;
use swimlet_protocol::{Frame, Moment};

/// FNV-1a over 64-bit words instead of bytes, with the high half folded back: the
/// multiplication alone carries nothing downwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trace(u64);

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

impl Trace {
    pub(crate) fn new(seed: u64) -> Self {
        let mut trace = Self(OFFSET);
        trace.word(seed);
        trace
    }

    pub(crate) fn word(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(PRIME);
        self.0 = mixed ^ (mixed >> 29);
    }

    pub(crate) fn event(&mut self, at: Moment, kind: u8, a: u32, b: u32) {
        self.word(at.as_micros() ^ (u64::from(kind) << 56));
        self.word((u64::from(a) << 32) | u64::from(b));
    }

    pub(crate) fn text(&mut self, text: &str) {
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }

    pub(crate) fn value(self) -> u64 {
        self.0
    }
}

/// What tells frames of one kind apart, in one word.
pub(crate) fn frame_word(frame: &Frame) -> u64 {
    let of = |kind: u64, a: u64, b: u64| (kind << 60) ^ (a << 32) ^ b;
    match frame {
        Frame::Probe(probe) => probe.digest ^ of(0, probe.news.len() as u64, u64::from(probe.seq)),
        Frame::Ack(ack) => ack.digest ^ of(1, u64::from(ack.next_slot_ms), u64::from(ack.seq)),
        Frame::ProbeRequest(request) => request.subject.0 ^ of(2, 0, u64::from(request.seq)),
        Frame::ProbeReport(report) => {
            report.subject.0 ^ of(3, report.outcome as u64, u64::from(report.seq))
        }
        Frame::Gossip(news) => of(4, 0, news.len() as u64),
        Frame::Claims(claims) => {
            let word = claims.iter().map(|claim| {
                let missed = matches!(claim.finding, Finding::Missed { .. });
                claim.accuser.0 ^ claim.subject.0.rotate_left(7) ^ u64::from(missed)
            });
            word.fold(of(5, 0, claims.len() as u64), |all, one| all ^ one)
        }
        Frame::Reports(reports) => of(6, 0, reports.len() as u64),
        Frame::Verify(verify) => of(7, verify.subjects.len() as u64, u64::from(verify.round)),
        Frame::Verified(verified) => {
            of(8, verified.answers.len() as u64, u64::from(verified.round))
        }
        Frame::Leave(leave) => leave.generation.0 ^ of(9, 0, u64::from(leave.incarnation.0)),
        Frame::View(view) => of(10, u64::from(view.alive), u64::from(view.of)),
    }
}

/// A frame's kind, for tables by kind.
pub(crate) const fn frame_kind(frame: &Frame) -> usize {
    match frame {
        Frame::Probe(_) => 0,
        Frame::Ack(_) => 1,
        Frame::ProbeRequest(_) => 2,
        Frame::ProbeReport(_) => 3,
        Frame::Gossip(_) => 4,
        Frame::Claims(_) => 5,
        Frame::Reports(_) => 6,
        Frame::Verify(_) => 7,
        Frame::Verified(_) => 8,
        Frame::Leave(_) => 9,
        Frame::View(_) => 10,
    }
}

/// How many kinds there are.
pub(crate) const FRAME_KINDS: usize = 11;

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards that order counts, and the low bits of every word reach the whole.
    #[test]
    fn order_and_every_bit_count() {
        let hash = |words: &[u64]| {
            let mut trace = Trace::new(1);
            words.iter().for_each(|word| trace.word(*word));
            trace.value()
        };
        assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
        for bit in 0..64 {
            assert_ne!(hash(&[0, 0]), hash(&[1 << bit, 0]), "bit {bit}");
        }
    }
}
