//! Counters.

/// What a member did and dropped since its start, and how long its queues are now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Probes sent.
    pub probes: u64,
    /// Answers that came in time.
    pub acks: u64,
    /// Probes that went unanswered.
    pub misses: u64,
    /// Misses that were not said aloud because our own health forbade it.
    pub misses_withheld: u64,
    /// Times the clock jumped and open probes got a second chance.
    pub suspensions: u64,
    /// Indirect probes asked of others.
    pub indirect_asked: u64,
    /// Indirect probes made for others.
    pub indirect_made: u64,
    /// Times we refuted a suspicion against ourselves.
    pub refutations: u64,
    /// Claims sent, repeated ones included.
    pub claims_sent: u64,
    /// Claims dropped because they were too old or the queue was full.
    pub claims_dropped: u64,
    /// Self-reports dropped because the queue was full.
    pub reports_dropped: u64,
    /// News dropped because the queue was full.
    pub news_dropped: u64,
    /// State syncs begun.
    pub syncs: u64,
    /// State syncs refused or put off because of the pace.
    pub syncs_deferred: u64,
    /// Joins tried.
    pub joins: u64,
    /// Dials asked for.
    pub dials: u64,
    /// Frames about a subject that is not known here.
    pub dropped_unknown: u64,
    /// Frames from a link whose member is not known here.
    pub dropped_stranger: u64,
    /// Frames that speak for somebody else without the role that allows it.
    pub dropped_role: u64,
    /// Frames with a generation that cannot be.
    pub dropped_generation: u64,
    /// Frames that answer nothing we asked.
    pub dropped_unasked: u64,
    /// News and claims that tell nothing new.
    pub dropped_stale: u64,
    /// Members refused because the table is full.
    pub dropped_full: u64,
    /// Requests beyond what we do for one peer at a time.
    pub dropped_busy: u64,
    /// Outputs dropped because nobody polled them out.
    pub dropped_outputs: u64,
    /// Errors foca gave back; each is a fault of ours.
    pub foca_errors: u64,
    /// Members known, ourselves not counted.
    pub members: u64,
    /// Of them alive.
    pub members_alive: u64,
    /// Links that stand.
    pub links: u64,
    /// Subjects we watch.
    pub subjects: u64,
    /// News waiting to be spread.
    pub news_queue: u64,
    /// Claims waiting to be sent.
    pub claims_queue: u64,
    /// Probes that wait for their answer.
    pub probes_open: u64,
}
