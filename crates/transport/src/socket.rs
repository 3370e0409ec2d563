//! The UDP socket beneath QUIC: lean, filtering, and able to fall silent.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

use crate::stats::Counters;

/// Largest UDP payload of a member in bytes: the smallest path MTU of QUIC
/// (RFC 9000, §14), because MTU discovery is off on both sides.
pub(crate) const UDP_PAYLOAD_MAX: usize = 1_200;
/// Smallest QUIC packet that an endpoint may have to look at: a stateless reset
/// (RFC 9000, §10.3).
const UDP_PAYLOAD_MIN: usize = 21;
/// The bit that every QUIC v1 packet has set (RFC 9000, §17.2 and §17.3); the
/// extension that would clear it (RFC 9287) is off.
const FIXED_BIT: u8 = 0x40;
/// Largest burst that the kernel hands over at once (UDP GRO).
const BURST_BYTES_MAX: usize = 65_536;

thread_local! {
    /// Where bursts are received, before they are taken apart.
    static BURST: RefCell<Vec<u8>> = RefCell::new(vec![0; BURST_BYTES_MAX]);
}

/// Wraps a socket so that QUIC sees single datagrams of a member's size.
///
/// quinn sizes each endpoint's buffer by what the socket says it may receive at
/// once, which with the kernel's receive offload is 64 times what we need: 2 MB
/// or more. This socket says one segment, receives bursts into a buffer of the
/// thread, and hands them on one by one. Without that last step a burst that the
/// network card had merged would be cut off, since quinn's socket switches
/// receive offload on whatever is said here.
pub(crate) struct LeanSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    silent: Arc<AtomicBool>,
    counters: Arc<Counters>,
    /// Datagrams of one burst that found no buffer. At most the 64 segments of a
    /// burst (the kernel's `UDP_GRO_CNT_MAX`), since nothing is received before
    /// it is empty again.
    surplus: Mutex<VecDeque<(RecvMeta, Vec<u8>)>>,
}

impl LeanSocket {
    pub(crate) fn new(
        inner: Arc<dyn AsyncUdpSocket>,
        silent: Arc<AtomicBool>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            inner,
            silent,
            counters,
            surplus: Mutex::default(),
        }
    }

    /// Whether a member can have sent this; counts what it refuses.
    fn admits(&self, datagram: &[u8]) -> bool {
        if datagram.len() > UDP_PAYLOAD_MAX {
            self.counters.udp_oversized.inc();
            return false;
        }
        let fixed_bit = datagram.first().is_some_and(|first| first & FIXED_BIT != 0);
        if datagram.len() < UDP_PAYLOAD_MIN || !fixed_bit {
            self.counters.udp_garbage.inc();
            return false;
        }
        true
    }

    /// Takes a burst apart into `bufs`, and the rest into `surplus`.
    fn split(
        &self,
        burst: &[u8],
        from: &RecvMeta,
        surplus: &mut VecDeque<(RecvMeta, Vec<u8>)>,
        bufs: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> usize {
        let mut slots = bufs.iter_mut().zip(metas.iter_mut());
        let mut filled = 0;
        for datagram in burst.chunks(from.stride.max(1)) {
            if !self.admits(datagram) {
                continue;
            }
            let meta = RecvMeta {
                len: datagram.len(),
                stride: datagram.len(),
                ..*from
            };
            match slots.next() {
                Some((buf, slot)) => {
                    fill(buf, slot, meta, datagram);
                    filled += 1;
                }
                None => surplus.push_back((meta, datagram.to_vec())),
            }
        }
        filled
    }
}

impl AsyncUdpSocket for LeanSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if self.silent.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut surplus = self.surplus.lock().unwrap_or_else(PoisonError::into_inner);
        let mut filled = 0;
        for (buf, slot) in bufs.iter_mut().zip(metas.iter_mut()) {
            let Some((meta, datagram)) = surplus.pop_front() else {
                break;
            };
            fill(buf, slot, meta, &datagram);
            filled += 1;
        }
        if filled > 0 {
            return Poll::Ready(Ok(filled));
        }
        BURST.with_borrow_mut(|burst| {
            loop {
                let mut meta = [RecvMeta::default()];
                let received = ready!(self.inner.poll_recv(
                    cx,
                    &mut [IoSliceMut::new(burst)],
                    &mut meta
                ))?;
                let [meta] = meta;
                if received == 0 || self.silent.load(Ordering::Relaxed) {
                    continue;
                }
                let burst = burst.get(..meta.len).unwrap_or_default();
                let filled = self.split(burst, &meta, &mut surplus, bufs, metas);
                if filled > 0 {
                    return Poll::Ready(Ok(filled));
                }
            }
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

impl fmt::Debug for LeanSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeanSocket")
            .field("inner", &self.inner)
            .field("silent", &self.silent)
            .finish_non_exhaustive()
    }
}

/// `datagram` has at most [`UDP_PAYLOAD_MAX`] bytes and quinn's buffers at least
/// that, as the endpoint is configured; a smaller one would cut it off.
fn fill(buf: &mut IoSliceMut<'_>, slot: &mut RecvMeta, meta: RecvMeta, datagram: &[u8]) {
    let len = datagram.len().min(buf.len());
    if let (Some(to), Some(from)) = (buf.get_mut(..len), datagram.get(..len)) {
        to.copy_from_slice(from);
    }
    *slot = RecvMeta { len, ..meta };
}
