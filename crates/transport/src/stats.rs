//! Counters of everything that is dropped, refused or bounded.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// A snapshot of the counters, all since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$doc])+ pub $name: u64,)+
        }

        /// The counters themselves.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)+
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.value(),)+ }
            }
        }

        impl Stats {
            /// Each counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

counters! {
    /// Frames handed to a link.
    frames_sent,
    /// Frames not sent: no link.
    frames_unsent_no_link,
    /// Frames not sent: the link's send buffer was full.
    frames_unsent_full,
    /// Frames not sent: too large for a datagram.
    frames_unsent_too_large,
    /// Frames received and queued as events.
    frames_received,
    /// Frames received and dropped, because the event queue was full.
    frames_dropped_queue_full,
    /// Datagrams of a link that are no frame.
    frames_malformed,
    /// Datagrams of a link in another wire version.
    frames_other_version,
    /// UDP payloads that are no QUIC packet.
    udp_garbage,
    /// UDP payloads longer than any member sends.
    udp_oversized,
    /// Incoming handshakes that were begun.
    handshakes_accepted,
    /// Incoming handshakes sent back to prove their address.
    handshakes_retried,
    /// Incoming handshakes refused: all places taken.
    handshakes_refused,
    /// Incoming handshakes ignored: all places taken and the address unproven.
    handshakes_ignored,
    /// Incoming handshakes given up after the timeout.
    handshakes_stalled,
    /// Incoming handshakes that failed, by a refused certificate or otherwise.
    handshakes_failed,
    /// Dials begun.
    dials,
    /// Dials that failed at every address.
    dials_failed,
    /// Dials refused because too many were waiting.
    dials_queue_full,
    /// Dials that a busy peer put off, and that were tried again.
    dials_put_off,
    /// Events about strangers, and dials over the limit, not told: queue full.
    events_dropped_queue_full,
    /// Links that came up.
    links_up,
    /// Links that went down.
    links_down,
    /// Connections closed at once because the link table was full.
    links_refused_full,
    /// Second connections of a peer that came beside an open one.
    links_doubled,
    /// Those of them that were settled to one, or settled themselves by ending.
    links_settled,
    /// Links closed for malformed datagrams.
    links_closed_malformed,
    /// Syncs asked.
    syncs_asked,
    /// Syncs asked that failed.
    syncs_failed,
    /// Syncs answered.
    syncs_answered,
    /// Syncs not begun or answered, because too many were in flight.
    syncs_over_limit,
    /// Sync streams of peers that broke the rules or timed out.
    syncs_bad,
    /// Credential files taken into use while running.
    credentials_reloaded,
    /// Looks at credential files that had changed and could not be used.
    credentials_rejected,
}

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn inc(&self) {
        self.add(1);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
