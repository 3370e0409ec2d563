//! Every constant of the judge, with its reason and its source.

use std::time::Duration;

use crate::config::Percent;

// ---- when a silence is a death -------------------------------------------------

/// Silence before a write in the default profile. Shorter outages (a switch's
/// failover, a live migration's pause) heal within about 3 s.
pub const PERSISTENCE_DEFAULT: Duration = Duration::from_secs(4);
/// The same in `fast`: one probe period more than the first miss.
pub const PERSISTENCE_FAST: Duration = Duration::from_secs(1);
/// The same in `cautious`: longer than a kubelet's lease period of 10 s + 4 %, so a
/// live kubelet is heard of before.
pub const PERSISTENCE_CAUTIOUS: Duration = Duration::from_secs(15);
/// In-tree's default `--node-monitor-grace-period` (50 s since 1.32): where the data
/// plane may still live we are never faster than that.
pub const IN_TREE_GRACE: Duration = Duration::from_secs(50);
/// Time between two rounds of verification.
pub const ROUND_INTERVAL: Duration = Duration::from_secs(1);
/// The same in `fast`.
pub const ROUND_INTERVAL_FAST: Duration = Duration::from_millis(500);
/// Rounds that must have found the same: one can be lost to a burst.
pub const ROUNDS_MIN: u32 = 2;
/// Each member is probed about once in this time, by all its observers together.
pub const PROBE_PERIOD: Duration = Duration::from_secs(1);
/// Hosts that must find a node silent, where there are that many: as many as SWIM's
/// customary k of indirect probes (Das et al., DSN 2002, §3.1).
pub const WITNESSES_WANTED: usize = 3;
/// Hosts that must find a node silent, however few there are.
pub const WITNESSES_MIN: usize = 2;
/// Hosts whose unanswered probes fix when the silence began.
pub const BEGAN_CONFIRMED_BY: usize = 2;
/// Direct checks of a node whose agent does not answer, but whose kubelet does.
pub const DIRECT_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// How long a case is verified at the full rate; a matter that is not settled in
/// that time waits for something slower than rounds.
pub const FAST_ROUNDS_FOR: Duration = Duration::from_secs(70);
/// How long an agent may be away beside an answering kubelet before it is called
/// missing: a restarting container takes seconds, its first back-off is 10 s.
pub const AGENT_MISSING_AFTER: Duration = Duration::from_secs(30);
/// How long after a goodbye a node can be called unreachable at the earliest: a
/// rolled agent is back within that time.
pub const LEFT_GRACE: Duration = Duration::from_secs(30);
/// How long after its interval a silent node without enough witnesses is called
/// unverifiable: five rounds.
pub const UNVERIFIABLE_AFTER: Duration = Duration::from_secs(5);
/// A verifier's or accuser's word against a node does not count above this local
/// health multiplier (Lifeguard, arXiv 1707.00788 §IV-A; 0–8): half the scale, where
/// its own timeouts have grown fivefold.
pub const HEALTH_COUNTED_MAX: u8 = 4;
/// Above this many open cases, what co-observers found counts as round one: their
/// probes are as independent, and verifiers have enough to do.
pub const CO_OBSERVERS_COUNT_ABOVE: usize = 50;
/// The judge takes a call that comes later than this after the moment it asked for as
/// the end of a pause of its process ([`crate::Input::Suspended`]).
///
/// Long enough for a loaded machine, where a task comes late by some tenths of a
/// second: the pause costs one full detection, which must not be paid for a busy core.
/// Short enough for the judgement: a second is one round and one probe period, a quarter
/// of the default persistence, so the rest of it was watched, by at least the two rounds
/// that are wanted anyway; and what a second brings mostly waits in the sockets and is
/// read before the next look ([`LATE_LOOK`]), while a longer one overflows them.
pub const LATE_MAX: Duration = Duration::from_secs(1);
/// After a call that comes later than this, the look at open cases is put off by one
/// [`TICK_OPEN`], so that what has queued up meanwhile is fed before anything is
/// decided: three looks late, which an idle machine never is.
pub const LATE_LOOK: Duration = Duration::from_millis(300);
/// Claims older than this are dropped, here as in the mesh.
pub const CLAIM_AGE_MAX: Duration = Duration::from_secs(10);

// ---- heartbeats ----------------------------------------------------------------

/// The kubelet's default `nodeLeaseDurationSeconds`.
pub const LEASE_DURATION_DEFAULT: Duration = Duration::from_secs(40);
/// A kubelet renews its Lease every quarter of its duration (`nodeLeaseRenewIntervalFraction`).
pub const LEASE_RENEWALS_PER_DURATION: u32 = 4;
/// The jitter of the renewal, 4 % (`k8s.io/component-helpers/apimachinery/lease`),
/// in percent of the interval.
pub const LEASE_JITTERED_PERCENT: u32 = 104;
/// `nodeStatusReportFrequency` of 5 min, spread by ±50 %: the longest time between
/// two status reports of a live kubelet that writes no Lease.
pub const STATUS_REPORT_PERIOD: Duration = Duration::from_secs(450);
/// Silent for this many periods, heartbeats are evidence.
pub const SILENT_PERIODS: u32 = 2;
/// Lease reads while silence is being measured: twice within the default period.
pub const LEASE_READ_INTERVAL: Duration = Duration::from_secs(5);
/// The two Lease reads that a decision compares lie this part of the profile's
/// persistence apart, or farther: the first is asked for at the first accusation, so it
/// takes half of the interval to lose it and read again.
pub const LEASE_WATCHED_DIVISOR: u32 = 2;
/// The same in `cautious`: a renewal of every live kubelet falls between them, its period
/// of 10 s and its jitter of 4 % included, also where the first reads failed.
pub const LEASE_WATCHED_CAUTIOUS: Duration = Duration::from_secs(11);
/// A failed Lease read is repeated after this time.
pub const LEASE_RETRY: Duration = Duration::from_secs(1);
/// A Lease read that was answered longer ago than this is too old for a decision. Counted
/// from the answer: a slow API server makes decisions late, not impossible.
///
/// A renewal between the read and the patch goes unnoticed, because it changes the Lease
/// and not the Node. It finds its Unknown within its kubelet's ten seconds, and takes it back.
pub const LEASE_FRESH: Duration = Duration::from_secs(1);
/// A read that was under way for longer says nothing about now: the edge gives a read 3 s.
pub const LEASE_UNDER_WAY_MAX: Duration = Duration::from_secs(3);
/// A Lease read that is not answered within this time counts as failed: twice the
/// call timeout that the edge is given.
pub const LEASE_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Lease reads in flight: what the client is given to have open at once, so no
/// read waits behind another for long.
pub const LEASE_READS_MAX: usize = 64;

// ---- an agent's own word -------------------------------------------------------

/// An agent reports every 10 s.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// An agent was heard if it was within this time: two reports may be lost.
pub const HEARD_WITHIN: Duration = Duration::from_secs(25);
/// While more than this share of the nodes (and more than one) say that the API
/// server fails, it is the control plane.
pub const API_CUT_OFF_SHARE: Percent = Percent::constant(5);

// ---- brakes --------------------------------------------------------------------

/// Largest share of monitored nodes that may bear our Unknown (brake 2): in-tree's
/// `--unhealthy-zone-threshold` of 55 %.
pub const BRAKE_SHARE_MAX: Percent = Percent::constant(55);
/// Brake 3: this share …
pub const GRADED_SHARE: Percent = Percent::constant(10);
/// … and this many nodes …
pub const GRADED_NODES_MIN: usize = 3;
/// … fallen within this time.
pub const GRADED_WITHIN: Duration = Duration::from_secs(60);
/// An agent heard within this time makes its node one that we watch: longer than a
/// restart of all aggregators, shorter than a node pool's life.
pub const AGENT_MEMORY: Duration = Duration::from_secs(24 * 3600);
/// When more than this share of the agents …
pub const ALL_LEFT_SHARE: Percent = Percent::constant(50);
/// … left within this time, they were taken away, and nothing is written for them.
pub const ALL_LEFT_WITHIN: Duration = Duration::from_secs(300);
/// A leader that sees a minority for this long makes way.
pub const STEP_DOWN_AFTER: Duration = Duration::from_secs(10);
/// How long an isolated leader that made way does not stand: longer than a takeover
/// (10 s of lease, two tries 2 s apart).
pub const STAND_ASIDE: Duration = Duration::from_secs(15);
/// Another aggregator's view older than this says nothing.
pub const PEER_VIEW_FRESH: Duration = Duration::from_secs(30);

// ---- memory of episodes --------------------------------------------------------

/// Damping looks back this far.
pub const DAMPING_WINDOW: Duration = Duration::from_secs(30 * 60);
/// From this episode within the window on, persistence doubles with each.
pub const DAMPING_FROM: u32 = 3;
/// Largest power of two that damping multiplies by: 32 s in the default profile.
pub const DAMPING_POWER_MAX: u32 = 3;
/// Taken-back Unknowns are remembered this long …
pub const TAKEN_BACK_WINDOW: Duration = Duration::from_secs(600);
/// … and this many make all evidence weak: the mesh does not see what the API sees.
pub const TAKEN_BACK_MAX: usize = 2;
/// A node that a peer reaches within this time of taking its Unknown back was
/// simply quicker with its kubelet than with its agent.
pub const TAKEN_BACK_EXCUSED_WITHIN: Duration = Duration::from_secs(60);
/// A write's outcome that is not told within this time is lost.
pub const WRITE_OUTCOME_WITHIN: Duration = Duration::from_secs(30);
/// After a refused or failed write the matter rests this long before it is decided anew.
pub const DECIDE_ANEW_AFTER: Duration = Duration::from_secs(1);
/// An accuser refuted more often than this …
pub const REFUTED_MAX: u32 = 10;
/// … within this time is not believed for as long.
pub const REFUTED_WINDOW: Duration = Duration::from_secs(60);

// ---- bounds --------------------------------------------------------------------

/// Nodes held, and watched by the Kubernetes edge: a third more than 15,000, which is three times
/// what Kubernetes is tested to, so that a roll-out that surges over whole pools fits in.
pub const NODES_MAX: usize = 20_000;
/// Members remembered beside the Nodes, for those whose Node is listed later.
pub const MEMBERS_MAX: usize = NODES_MAX;
/// Accusers of one node: ten observers, their indirect probes' takers, and verifiers.
pub const ACCUSERS_MAX: usize = 32;
/// Aggregators known; three are deployed.
pub const AGGREGATORS_MAX: usize = 16;
/// Observers kept of one member: the mesh gives it 10, or all of up to 11 members.
pub const OBSERVERS_MAX: usize = 16;
/// Observers asked in one round, aggregators besides.
pub const OBSERVERS_ASKED_MAX: usize = 5;
/// Of these, how many at most from the subject's own zone when other zones have some.
pub const OBSERVERS_INSIDE: usize = 1;
/// Rounds kept of one case: enough for the two that decide and for late answers.
pub const ROUNDS_KEPT: usize = 6;
/// An answer is taken this long: a TCP and TLS try of about 1 s, stretched.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Datagrams of verification that may await an answer.
pub const ASKS_MAX: usize = 8_192;
/// Nodes verified in one round at most: with 8 verifiers each that is 210 datagrams.
pub const CASES_PER_ROUND_MAX: usize = 1_000;
/// Addresses tried of one node: two families, two interfaces each.
pub const ADDRESSES_MAX: usize = swimlet_protocol::member::ADDRESSES_MAX;
/// The kubelet's default port, for Nodes that do not tell.
pub const KUBELET_PORT: u16 = 10_250;
/// Accusers whose refutations are counted; the oldest count goes first.
pub const REFUTED_ACCUSERS_MAX: usize = 1_024;
/// Taken-back Unknowns remembered.
pub const TAKEN_BACK_KEPT: usize = 64;
/// Outputs that may wait to be polled; the edge drains after each input, so only a
/// mass event fills it, and what finds no room is decided again at the next tick.
pub const OUTPUTS_MAX: usize = 65_536;

// ---- pace ----------------------------------------------------------------------

/// Open cases are looked at this often; news pulls it forward.
pub const TICK_OPEN: Duration = Duration::from_millis(100);
/// Smallest time between two looks, whatever the news: an evaluation of 2,000 open
/// cases takes a few milliseconds.
pub const TICK_MIN: Duration = Duration::from_millis(50);
/// Without open cases the judge looks this often: for silent agents and brakes.
pub const TICK_IDLE: Duration = Duration::from_secs(1);
/// Rounds due within this time go out together, so that cases share datagrams.
pub const ROUND_SLACK: Duration = Duration::from_millis(150);
