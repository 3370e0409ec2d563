//! Listening on loopback in a way that can go away: connections that can be severed all at once, and a port that
//! stays ours while nobody listens on it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Connections that wait to be accepted; as many as the kernel allows by default.
const BACKLOG: u32 = 4_096;

/// Takes `address` without listening: connections to it are refused, and nobody else gets it.
///
/// Loopback ports are also handed out as ephemeral ports of outgoing connections, so a port that was only remembered
/// could be gone at the return.
pub(crate) fn reserve(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // Connections of before in TIME_WAIT do not hinder a bind with it.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Begins to listen on a reserved address.
pub(crate) fn listen(socket: TcpSocket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)
}

/// A listener whose connections all die with a token.
pub(crate) struct SeverableListener {
    pub(crate) listener: TcpListener,
    pub(crate) severed: CancellationToken,
}

impl Listener for SeverableListener {
    type Io = Severable;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        // axum's own accept waits out errors such as a lack of file descriptors.
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        // A small answer must not wait for the acknowledgement of the one before.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "the connection keeps Nagle's algorithm");
        }
        let ended = Box::pin(self.severed.clone().cancelled_owned());
        (
            Severable {
                stream,
                severed: self.severed.clone(),
                ended,
            },
            peer,
        )
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails as soon as its token is cancelled, whoever waits on it.
pub(crate) struct Severable {
    stream: TcpStream,
    severed: CancellationToken,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Severable {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.severed.is_cancelled() || self.ended.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }
}

impl AsyncRead for Severable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Severable {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
