//! What the judge remembers of one Node object.

use std::collections::VecDeque;
use std::time::Duration;

use swimlet_protocol::frame::Check;
use swimlet_protocol::{MemberKey, Moment};

use crate::constants::{
    AGENT_MEMORY, DAMPING_FROM, DAMPING_POWER_MAX, DAMPING_WINDOW, HEARD_WITHIN,
};
use crate::heartbeat::HeartbeatTrack;
use crate::node::{NodeSeen, ReadyStatus};
use crate::suspicion::Suspicion;
use crate::verdict::{Rule, Verdict};

/// One Node object. A new UID starts a new one, with nothing of the old.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) seen: NodeSeen,
    /// When this object was first seen: no evidence about it is older.
    pub(crate) first_seen: Moment,
    pub(crate) agent: AgentMemory,
    /// The last packet of any kind from the host.
    pub(crate) packet: Option<Moment>,
    pub(crate) heartbeats: HeartbeatTrack,
    /// Evidence before this moment does not count: a heartbeat, a voided write.
    pub(crate) floor: Moment,
    pub(crate) suspicion: Option<Suspicion>,
    /// When it was first seen to be silent, confirmed by two hosts (brake 3).
    pub(crate) fell: Option<Moment>,
    pub(crate) word: OwnWord,
    pub(crate) cut_off: Option<CutOff>,
    pub(crate) writing: Option<Writing>,
    /// When past episodes were written, oldest first; at most [`EPISODES_KEPT`].
    pub(crate) episodes: VecDeque<Moment>,
    pub(crate) observers: Vec<MemberKey>,
    pub(crate) said: Said,
}

/// Past episodes kept for damping: beyond these the multiplier is at its bound.
const EPISODES_KEPT: usize = (DAMPING_FROM + DAMPING_POWER_MAX) as usize;

/// What is known of a node's agent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AgentMemory {
    /// When anyone is known to have heard it; reaches back before our start.
    pub(crate) known: Option<Moment>,
    /// When it was last heard since our start.
    pub(crate) heard: Option<Moment>,
    /// When it said goodbye, if it is away since.
    pub(crate) left: Option<Moment>,
}

/// What the agent says of its own node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnWord {
    /// The moment of the latest report.
    pub(crate) at: Option<Moment>,
    /// Since when reports have said that the kubelet fails.
    pub(crate) kubelet_fails_since: Option<Moment>,
    /// Since when reports have said that the API server fails.
    pub(crate) api_fails_since: Option<Moment>,
    /// What it says of the kubelet led to an Unknown that the kubelet took back, and no
    /// report has cleared it since: the kubelet knows better.
    kubelet_barred: bool,
    /// The same of what it says of the API server.
    api_barred: bool,
}

/// No peer reaches it, its kubelet reaches the API server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutOff {
    pub(crate) taken_back: bool,
}

/// A decision on its way, or carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writing {
    pub(crate) episode: u64,
    pub(crate) verdict: Verdict,
    pub(crate) at: Moment,
    pub(crate) state: WriteState,
}

/// How far a decision got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteState {
    /// Handed out; the outcome is awaited.
    Pending,
    /// Written; the watch has not shown it yet.
    Written,
    /// Written and seen.
    Shown,
    /// Observe mode: would have been written.
    WouldWrite,
    /// Refused or failed: decided anew from this moment on, on newer evidence.
    Anew(Moment),
}

/// What was said last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) verdict: Verdict,
    pub(crate) rule: Rule,
    pub(crate) since: Moment,
}

impl Node {
    pub(crate) fn new(now: Moment, seen: NodeSeen, agent: AgentMemory) -> Self {
        let (verdict, rule) = if agent.heard.is_some() {
            (Verdict::Alive, Rule::AgentAnswers)
        } else {
            (Verdict::Unmonitored, Rule::NoAgentEver)
        };
        Self {
            seen,
            first_seen: now,
            agent,
            packet: None,
            heartbeats: HeartbeatTrack::new(now),
            floor: now,
            suspicion: None,
            fell: None,
            word: OwnWord::default(),
            cut_off: None,
            writing: None,
            episodes: VecDeque::new(),
            observers: Vec::new(),
            said: Said {
                verdict,
                rule,
                since: now,
            },
        }
    }

    /// Whether it counts among the nodes that we watch: it had an agent, and is not
    /// being removed.
    pub(crate) fn is_monitored(&self, now: Moment) -> bool {
        !self.seen.deleting && self.had_agent(now)
    }

    /// Whether it had an agent within the memory, and is not marked as having none.
    pub(crate) fn had_agent(&self, now: Moment) -> bool {
        !self.seen.agentless
            && self
                .agent
                .known
                .is_some_and(|known| now.since(known) <= AGENT_MEMORY)
    }

    /// Whether its agent was heard lately and nobody misses it.
    pub(crate) fn is_alive(&self, now: Moment) -> bool {
        self.agent.left.is_none()
            && self
                .suspicion
                .as_ref()
                .is_none_or(|case| case.accusers_len() == 0 && case.rounds().next().is_none())
            && self.heard_lately(now)
    }

    pub(crate) fn heard_lately(&self, now: Moment) -> bool {
        self.agent
            .heard
            .is_some_and(|heard| now.since(heard) <= HEARD_WITHIN)
    }

    /// Whether it bears our Unknown, or will as far as we know.
    pub(crate) fn bears_ours(&self) -> bool {
        let shown = self
            .seen
            .ready
            .as_ref()
            .is_some_and(|ready| ready.status == ReadyStatus::Unknown && ready.ours);
        let on_its_way = self.writing.is_some_and(|writing| {
            matches!(
                writing.state,
                WriteState::Pending
                    | WriteState::Written
                    | WriteState::Shown
                    | WriteState::WouldWrite
            )
        });
        shown || on_its_way
    }

    /// Whether a decision about it waits at the writer, as far as we know.
    pub(crate) fn decision_waits(&self) -> bool {
        self.writing
            .is_some_and(|writing| writing.state == WriteState::Pending)
    }

    /// Whether somebody misses it, and its host has not answered otherwise.
    pub(crate) fn is_missed(&self) -> bool {
        self.suspicion
            .as_ref()
            .is_some_and(|case| case.accusers_len() > 0 && !case.host_answered())
    }

    /// Whether it fell within that time, or is missed since then: the first of many must
    /// not be decided before the others are confirmed.
    pub(crate) fn is_falling(&self, now: Moment, within: Duration) -> bool {
        let young = |at: Moment| now.since(at) <= within;
        let opened = self.suspicion.as_ref().map(|case| case.opened);
        self.fell.is_some_and(young) || (self.is_missed() && opened.is_some_and(young))
    }

    /// Whether anything about it must be looked at.
    pub(crate) fn is_open(&self) -> bool {
        self.suspicion.is_some()
            || self.word.says_failing()
            || self
                .writing
                .is_some_and(|writing| writing.state != WriteState::Shown)
    }

    /// Whether its agent says, and said lately, that the API server fails.
    pub(crate) fn says_api_fails(&self, now: Moment) -> bool {
        self.word.is_fresh(now) && self.word.api_fails_since.is_some()
    }

    /// Whether status reports and Lease both stopped while its agent answers.
    pub(crate) fn heartbeats_stopped(&self, now: Moment) -> bool {
        self.suspicion.is_none()
            && self.heartbeats.doubtful(now)
            && self.heartbeats.lease_still_since().is_some()
            && self.heartbeats.silent_long(now)
    }

    /// No evidence of silence is older than this.
    pub(crate) fn silence_floor(&self) -> Moment {
        let packet = self.packet.unwrap_or(Moment::ORIGIN);
        self.first_seen.max(self.floor).max(packet)
    }

    /// By how much damping stretches persistence for an episode that begins now:
    /// twofold from the third within the window, doubled with each further one.
    pub(crate) fn damping(&self, now: Moment) -> u32 {
        let recent = self
            .episodes
            .iter()
            .filter(|at| now.since(**at) <= DAMPING_WINDOW)
            .count();
        let this = u32::try_from(recent).unwrap_or(u32::MAX).saturating_add(1);
        match this.checked_sub(DAMPING_FROM) {
            None => 1,
            Some(beyond) => 1 << (beyond + 1).min(DAMPING_POWER_MAX),
        }
    }

    pub(crate) fn note_episode(&mut self, now: Moment) {
        if self.episodes.len() >= EPISODES_KEPT {
            self.episodes.pop_front();
        }
        self.episodes.push_back(now);
    }
}

impl OwnWord {
    /// Takes a report of the moment `at`.
    pub(crate) fn take(&mut self, at: Moment, healthz: Check, port: Check, api: Check) {
        if self.at.is_some_and(|known| known >= at) {
            return;
        }
        self.at = Some(at);
        // :10248 counts only if it ever worked: a configuration may not have it.
        let kubelet_fails = port == Check::Failing && healthz != Check::Passing;
        let keep = |since: Option<Moment>, fails: bool| fails.then(|| since.unwrap_or(at));
        self.kubelet_fails_since = keep(self.kubelet_fails_since, kubelet_fails);
        self.api_fails_since = keep(self.api_fails_since, api == Check::Failing);
        self.kubelet_barred &= port != Check::Passing;
        self.api_barred &= api != Check::Passing;
    }

    /// The kubelet took an Unknown with this verdict back: the word behind it does not
    /// count again before a report has cleared it once.
    pub(crate) fn bar(&mut self, verdict: Verdict) {
        self.kubelet_barred |= verdict == Verdict::KubeletDown;
        self.api_barred |= verdict == Verdict::ApiCutOff;
    }

    /// Since when it has said that the kubelet fails, if a verdict may rest on that.
    pub(crate) fn kubelet_failing(&self, now: Moment) -> Option<Moment> {
        let counts = self.is_fresh(now) && !self.kubelet_barred;
        self.kubelet_fails_since.filter(|_| counts)
    }

    /// Since when it has said that the API server fails, if a verdict may rest on that.
    pub(crate) fn api_failing(&self, now: Moment) -> Option<Moment> {
        let counts = self.is_fresh(now) && !self.api_barred;
        self.api_fails_since.filter(|_| counts)
    }

    /// Whether it says that anything fails.
    pub(crate) fn says_failing(&self) -> bool {
        self.kubelet_fails_since.is_some() || self.api_fails_since.is_some()
    }

    /// Whether the word is recent enough to rest a verdict on.
    fn is_fresh(&self, now: Moment) -> bool {
        self.at.is_some_and(|at| now.since(at) <= HEARD_WITHIN)
    }

    /// A word that nobody renewed is forgotten; what bars it is not.
    pub(crate) fn expire(&mut self, now: Moment) {
        let dead = |at: Moment| now.since(at) > HEARD_WITHIN + Duration::from_secs(5);
        if self.at.is_some_and(dead) {
            *self = Self {
                kubelet_barred: self.kubelet_barred,
                api_barred: self.api_barred,
                ..Self::default()
            };
        }
    }
}

impl WriteState {
    /// Whether no other decision may be taken meanwhile.
    pub(crate) const fn blocks(self) -> bool {
        !matches!(self, Self::Anew(_))
    }
}
