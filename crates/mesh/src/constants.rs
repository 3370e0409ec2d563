//! Every constant of the mesh, with its reason.
//!
//! | constant | value | why |
//! | --- | --- | --- |
//! | [`OBSERVERS`] | 10 | Rapid (Suresh et al., ATC'18, §4.1): ten rings are an expander that survives 40 % of its members failing |
//! | [`ACCUSERS_MIN`] | 3 | below it one liar and one deaf member together could bring a member down |
//! | [`CONFIRMATIONS`] | 3 | Lifeguard's K (arXiv 1707.00788 §IV-B) |
//! | [`HEALTH_MAX`] | 8 | Lifeguard's S (§IV-A, table II) |
//!
//! The rest stands with its own reason below.

use std::time::Duration;

/// Observers of each member: predecessors on as many hash rings (Rapid, ATC'18, §4.1, K = 10).
pub const OBSERVERS: usize = 10;
/// Up to this many members everyone watches everyone: then each has at most
/// [`OBSERVERS`] observers anyway.
pub const FULL_MESH_MAX: usize = OBSERVERS + 1;
/// Distinct accusers that bring a member down, where it has as many observers.
/// A deaf member and a liar at the same time are two.
pub const ACCUSERS_MIN: usize = 3;
/// Accusers remembered per subject: its observers, the aggregators, and some that
/// were observers before the last ring change.
pub const ACCUSERS_KEPT: usize = 24;
/// Lifeguard's K: how many confirmations bring the suspicion timeout from its
/// longest to its shortest (arXiv 1707.00788 §IV-B).
pub const CONFIRMATIONS: u32 = 3;
/// Largest local health multiplier (Lifeguard §IV-A, S = 8).
pub const HEALTH_MAX: u8 = 8;

/// Most members known. A cluster of 15,000 nodes, Kubernetes' largest known, has
/// room for its aggregators and for nodes that were replaced within [`FORGET_AFTER`].
pub const MEMBERS_MAX: usize = 20_000;
/// Most aggregators an aggregator keeps links to; three are deployed.
pub const AGGREGATORS_MAX: usize = 8;
/// Most seed addresses kept: a headless Service of three aggregators in two
/// families has six, a list written by hand is hardly longer than this.
pub const SEEDS_MAX: usize = 32;
/// Most remembered peer addresses kept.
pub const PEERS_MAX: usize = 64;

/// Each member is probed once in this time, by one of its observers in turn, so
/// an observer's own period is this times the number of observers.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How long an answer may take at full health: a high quantile of round trips
/// within a region is 10 ms; the rest is for a loaded machine.
pub const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// The same where a link has to be built first: a QUIC handshake needs up to
/// three round trips, and one retransmission of its first packet after 1 s.
pub const DIAL_PROBE_TIMEOUT: Duration = Duration::from_millis(1_500);
/// While a subject is missing its observers probe this often, sent to sent.
pub const MISSING_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between two probes that a subject's slots can ask for.
pub const SLOT_MIN: Duration = Duration::from_millis(250);
/// How often the link to an aggregator is probed that is kept for claims alone.
pub const KEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Misses on the link to the home aggregator after which another one is taken.
pub const HOME_MISSES_MAX: u32 = 2;
/// How long a home aggregator that failed is not taken again.
pub const HOME_SHUNNED: Duration = Duration::from_secs(30);
/// An observer that misses its subject asks all other observers it has links to with each
/// miss up to this one. From then on it asks [`ASK_LINKS_MIN`] of them: by then the rule
/// has spoken or the subject was reached, and what is left is to know that we err not alone.
pub const ASK_ALL_MISSES: u32 = 8;
/// Links to co-observers that are built for one miss when fewer than this stand:
/// with the observer itself one more than [`ACCUSERS_MIN`].
pub const ASK_LINKS_MIN: usize = 3;
/// Added to the probe timeout when waiting for co-observers: they have to hear
/// the request and, where their link broke, to build one.
pub const ASK_GRACE: Duration = Duration::from_millis(300);
/// A missed subject is accused this long after its co-observers were asked: one that
/// reaches it says so within two round trips, and a region's are 10 ms.
pub const REACHED_GRACE: Duration = Duration::from_millis(150);
/// A co-observer's "reached" or "not reached" counts this long: until the next
/// round of requests was answered, at [`MISSING_INTERVAL`] each.
pub const REPORT_FRESH: Duration = Duration::from_millis(2_500);
/// A subject that never answered us is accused only after this time, and never
/// before the judge: its path to us may be closed by a policy.
pub const NEVER_REACHED_AFTER: Duration = Duration::from_secs(30);
/// A subject that never answered us is vouched for by co-observers whom it answers; asking
/// them takes this long, with a dial.
pub const VOUCH_GRACE: Duration = Duration::from_secs(4);
/// Observers whose probes must reach us, where we have as many: half of [`OBSERVERS`], which
/// leaves [`ACCUSERS_MIN`] of them when a third of the members vanish at once.
pub const INBOUND_MIN: usize = OBSERVERS / 2;
/// Fewer than [`INBOUND_MIN`] of them for this long, and we ask others to watch us: three
/// periods of an observer.
pub const THIN_AFTER: Duration = Duration::from_secs(30);
/// How long one watches a member that asked for it; it asks again by then.
pub const VOLUNTEER_KEPT: Duration = Duration::from_secs(90);
/// Most members one watches because they asked for it: as many as by the rings.
pub const VOLUNTEERS_MAX: usize = OBSERVERS;
/// Requests for indirect probes and active verification that wait on one subject.
/// Its observers and all aggregators may ask at once.
pub const REPLIES_MAX: usize = 16;
/// Subjects of active verification that are probed at a time beside the watched ones:
/// three rounds' worth of [`swimlet_protocol::frame::SUBJECTS_MAX`].
pub const ERRANDS_MAX: usize = 128;
/// Unanswered sequence numbers remembered per subject, so that late answers count.
pub const LATE_ACKS_MAX: usize = 8;

/// A wake-up this late means that we were not run: twice the probe timeout.
pub const SUSPENDED_AFTER: Duration = Duration::from_secs(1);
/// Nothing from anybody for this long, with subjects missing: we are deaf. Three
/// times the interval at which our own observers probe us.
pub const DEAF_AFTER: Duration = Duration::from_secs(3);

/// An accusation older than this says nothing about now: ten probes of all observers.
pub const CLAIM_AGE_MAX: Duration = Duration::from_secs(10);
/// Two claims of one accuser may change places on the wire by this much. Between an
/// answer and the next miss lie a slot, a probe timeout and [`REACHED_GRACE`]: more.
pub const CLAIM_ORDER_SLACK: Duration = Duration::from_millis(500);
/// "It answered" is said again after this time, and after twice as long each time, until
/// what it takes back is older than [`CLAIM_AGE_MAX`]: five times, one of which arrives.
pub const CLAIM_REPEAT_MIN: Duration = Duration::from_millis(500);
/// "I hold it Down" is a state and holds longer than an accusation: until the
/// speaker would have corrected itself by anti-entropy.
pub const STATE_WORD_KEPT: Duration = Duration::from_secs(120);
/// The part of the shortest suspicion that does not grow with the mesh: two more probes of
/// each observer. The rest is the way of news: 2 · ⌈log₂(n + 1)⌉ · [`GOSSIP_INTERVAL`].
pub const SUSPICION_PROBES: Duration = Duration::from_secs(2);
/// The longest suspicion, without any confirmation beyond the first accuser, is this many
/// times the shortest. Lifeguard's β is 6 (§V, table IV); observers here ask each other
/// at once, so a suspicion that is right is confirmed within two probes.
pub const SUSPICION_RATIO: u32 = 3;
/// An answer this fresh outweighs an aggregator's word that the member is Down.
pub const CONTACT_FRESH: Duration = Duration::from_secs(3);
/// A refutation at most this often: each spends one of 65,535 incarnations.
pub const REFUTE_INTERVAL: Duration = Duration::from_millis(500);
/// A third party may raise a known incarnation by this much at most, of ours too. A
/// member refutes seldom; whoever missed more than this hears it from an aggregator.
pub const INCARNATION_STEP_MAX: u16 = 8;
/// A third party may raise a known generation by this many milliseconds at most:
/// ten years. Generations are start times, and a member may have been away for
/// long; what this stops is one lie that no honest clock ever passes.
pub const GENERATION_STEP_MAX: u64 = 10 * 365 * 24 * 3_600 * 1_000;

/// A Down or Left member keeps its place on the rings this long, so that a reboot
/// or a rack's failure moves nobody's links.
pub const PLACE_KEPT: Duration = Duration::from_secs(60);
/// A Down or Left member is forgotten after this time. Long enough that two halves of a
/// split mesh find each other again, short enough that replaced nodes do not pile up.
pub const FORGET_AFTER: Duration = Duration::from_secs(30 * 60);

/// Replacement links are dialled at this pace: after a mass failure everybody
/// needs some at once, and a handshake is a hundred times a probe's work.
pub const REPLACE_INTERVAL: Duration = Duration::from_secs(1);
/// Links that may be dialled at once without that pace, at the start and after a while of rest.
pub const DIAL_BURST: u32 = 24;
/// A dial that was not answered by then counts as failed.
pub const DIAL_GIVE_UP: Duration = Duration::from_secs(5);
/// First pause after a failed dial; doubles up to [`DIAL_RETRY_MAX`].
pub const DIAL_RETRY_MIN: Duration = Duration::from_secs(1);
/// Longest pause between dials of one peer.
pub const DIAL_RETRY_MAX: Duration = Duration::from_secs(8);
/// Of two members that watch each other one dials first; the other waits this long.
pub const DIAL_YIELD: Duration = Duration::from_millis(1_500);
/// Dials after which a third party's word of a later start is dropped: a minute's worth.
pub const HINT_TRIES: u32 = 8;
/// A link of ours that nobody needs is closed after this time.
pub const UNWANTED_KEPT: Duration = Duration::from_secs(10);
/// First frames on a link that carry our own record, in case some are lost.
pub const HELLOS: u8 = 3;
/// Coalesces the ring changes of a burst of joins before links are looked at.
pub const REPAIR_DELAY: Duration = Duration::from_millis(50);

/// How often links that need no probe now are looked at, accusations expire, and
/// lateness of the process shows.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The slow random probe over the member table, for completeness and to heal splits.
pub const RANDOM_INTERVAL: Duration = Duration::from_secs(30);
/// How often one seed is asked again, so that halves that forgot each other meet.
pub const RESEED_INTERVAL: Duration = Duration::from_secs(300);
/// The same while no aggregator is known: they were all taken away, and come back where
/// the seeds say. One member that finds them is enough, and of a large mesh some try at
/// each moment; a small one has few that could overwhelm them.
pub const RESEED_LONELY: Duration = Duration::from_secs(10);

/// Claims and reports of this time travel in one batch.
pub const CLAIM_BATCH: Duration = Duration::from_millis(50);
/// How long to wait for a link to an aggregator before looking again.
pub const CLAIM_RETRY: Duration = Duration::from_millis(500);
/// Claims and reports an aggregator holds for the others: 5,000 agents report
/// every 10 s, so this is eight seconds' worth, and lasts a batch.
pub const RELAY_MAX: usize = 4_096;

/// How often news goes out by itself, to [`GOSSIP_FANOUT`] neighbours.
pub const GOSSIP_INTERVAL: Duration = Duration::from_millis(200);
/// Neighbours that get news per tick (memberlist's LAN value).
pub const GOSSIP_FANOUT: usize = 3;
/// SWIM's λ: each piece of news is sent λ·log₂(n + 1) times (Das et al., DSN 2002, §4.1).
pub const GOSSIP_LAMBDA: u32 = 3;
/// Most news waiting: a quarter of the largest usual cluster at once; what is
/// dropped is brought by anti-entropy.
pub const NEWS_QUEUE_MAX: usize = 2_048;
/// Bytes of news in a frame of its own, below
/// [`FRAME_BYTES_MAX`](swimlet_protocol::frame::FRAME_BYTES_MAX) by version, tag and length.
pub const NEWS_BYTES: usize = 1_080;
/// Bytes of news on a probe or its answer, below the same by their own fields (≤ 60).
pub const PIGGYBACK_BYTES: usize = 1_000;
/// An aggregator tells its word to all its links, and once more after this time.
pub const URGENT_AGAIN: Duration = Duration::from_secs(1);

/// Digests must differ this long before a sync: news needs a few gossip ticks.
pub const DIFFER_AFTER: Duration = Duration::from_secs(4);
/// Shortest time between two syncs that we ask for.
pub const SYNC_INTERVAL: Duration = Duration::from_secs(10);
/// Whoever knows fewer members asks for all: the digests of all ranges are as long.
pub const SYNC_ALL_BELOW: usize = 32;
/// Members sent per second in answers to syncs: two full tables of 5,000.
pub const SYNC_MEMBERS_RATE: u64 = 10_000;
/// The same at once: a start of 300 members through one seed.
pub const SYNC_MEMBERS_BURST: u64 = 100_000;

/// Agents whose memory of gone members an aggregator wants after its start: one that
/// joined late remembers less.
pub const MEMORIES_WANTED: u8 = 3;
/// Agents it asks for that at most, where answers get lost.
pub const MEMORIES_ASKED_MAX: usize = 10;

/// Addresses that are joined through at a time.
pub const JOIN_PARALLEL: usize = 3;
/// First pause between rounds of joins; doubles up to [`JOIN_RETRY_MAX`].
pub const JOIN_RETRY_MIN: Duration = Duration::from_millis(500);
/// Longest pause between rounds of joins.
pub const JOIN_RETRY_MAX: Duration = Duration::from_secs(10);
/// A join that was not answered by then counts as failed.
pub const JOIN_GIVE_UP: Duration = Duration::from_secs(5);
/// Without any link for this long we join anew.
pub const REJOIN_AFTER: Duration = Duration::from_secs(5);

/// Most outputs waiting to be polled out: a word of an aggregator to all its
/// links, some of each kind. More means that the edge stopped polling.
pub const OUTPUTS_MAX: usize = 65_536;
