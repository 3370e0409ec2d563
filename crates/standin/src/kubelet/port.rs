//! A kubelet's port as others probe it: TLS with a certificate nobody can check, 401 for everything, and the two ways
//! of being dead.
//!
//! **Silence on loopback.** A closed port answers RST, and a listening one completes handshakes in the kernel, so a
//! death must be staged: the listener stays open with a backlog of 0 and its accept queue filled by connections of our
//! own. Linux then drops further SYNs (`tcp_conn_request` while `sk_acceptq_is_full`, with `tcp_abort_on_overflow` at
//! its default 0), and a connect hangs as towards a dead host. Connections established before stay open and unread:
//! the kernel goes on to acknowledge what they carry, which a dead host would not, but no answer comes.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::listen;

/// Connections served at a time; beyond it they wait in the accept queue, so nothing is lost and nothing to count.
const CONNECTIONS_MAX: usize = 256;

/// What waits to be accepted while the port is served.
const BACKLOG: i32 = 128;

/// A connection that says nothing for so long is closed, lest forgotten ones use up [`CONNECTIONS_MAX`].
const IDLE_MAX: Duration = Duration::from_secs(90);

/// A request's head; probes send a few hundred bytes.
const HEAD_BYTES_MAX: usize = 8 * 1024;

/// The queue is full when a connect to loopback has hung for so long, twice running: once may be a busy machine.
const FULL_AFTER: Duration = Duration::from_millis(250);

/// Connections with which to fill a queue of backlog 0: one by the kernel's rule, the rest for those still in
/// handshake when the backlog shrank.
const FILLERS_MAX: usize = 64;

const UNAUTHORIZED: &[u8] =
    b"HTTP/1.1 401 Unauthorized\r\nContent-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 12\r\n\r\nUnauthorized";

/// Why a hollow kubelet's port could not be put into a state.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The port cannot be had.
    #[error(
        "cannot listen on {address} for a hollow kubelet: {source}; choose another port, or 0 for a free one"
    )]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// No certificate could be made.
    #[error("cannot make a self-signed certificate for the hollow kubelet {name:?}: {source}")]
    Certificate {
        /// The kubelet's name.
        name: String,
        /// What the certificate maker says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Connects to the port still succeed.
    #[error(
        "{address} still accepts connections with a full queue: this system does not drop SYNs as Linux does"
    )]
    NotSilent {
        /// The port's address.
        address: SocketAddr,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Serving,
    Silent,
    Refusing,
}

/// A kubelet's port.
pub(crate) struct KubeletPort {
    address: SocketAddr,
    acceptor: TlsAcceptor,
    mode: watch::Sender<Mode>,
    state: Mutex<State>,
    tasks: TaskTracker,
    stopping: CancellationToken,
}

enum State {
    Serving {
        listener: Arc<TcpListener>,
        end: CancellationToken,
        accepting: JoinHandle<()>,
    },
    Silent {
        listener: Arc<TcpListener>,
        fillers: Vec<TcpStream>,
    },
    /// With the port, unless it was lost on the way.
    Refusing { reserved: Option<TcpSocket> },
}

impl KubeletPort {
    pub(crate) async fn open(
        name: &str,
        address: SocketAddr,
        tasks: &TaskTracker,
        stopping: &CancellationToken,
    ) -> Result<Self, PortError> {
        let acceptor = acceptor(name, address).map_err(|source| PortError::Certificate {
            name: name.into(),
            source,
        })?;
        let failed = |source| PortError::Listen { address, source };
        let reserved = listen::reserve(address).map_err(failed)?;
        let address = reserved.local_addr().map_err(failed)?;
        let port = Self {
            address,
            acceptor,
            mode: watch::Sender::new(Mode::Refusing),
            state: Mutex::new(State::Refusing {
                reserved: Some(reserved),
            }),
            tasks: tasks.clone(),
            stopping: stopping.clone(),
        };
        port.serve().await?;
        Ok(port)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts and answers. Connections of before the death are gone, as after a reboot.
    pub(crate) async fn serve(&self) -> Result<(), PortError> {
        let mut state = self.state.lock().await;
        let listener = match &mut *state {
            State::Serving { .. } => return Ok(()),
            State::Silent { listener, fillers } => {
                fillers.clear();
                socket2::SockRef::from(&**listener)
                    .listen(BACKLOG)
                    .map_err(|source| self.failed(source))?;
                Arc::clone(listener)
            }
            State::Refusing { reserved } => {
                let socket = reserved
                    .take()
                    .map_or_else(|| listen::reserve(self.address), Ok);
                Arc::new(
                    socket
                        .and_then(listen::listen)
                        .map_err(|source| self.failed(source))?,
                )
            }
        };
        self.mode.send_replace(Mode::Serving);
        let end = self.stopping.child_token();
        let accepting = self.tasks.spawn(accept(
            Arc::clone(&listener),
            self.acceptor.clone(),
            self.mode.subscribe(),
            end.clone(),
            self.tasks.clone(),
        ));
        *state = State::Serving {
            listener,
            end,
            accepting,
        };
        Ok(())
    }

    /// Swallows everything; see the module's text.
    pub(crate) async fn silence(&self) -> Result<(), PortError> {
        let mut state = self.state.lock().await;
        self.mode.send_replace(Mode::Silent);
        let listener = match std::mem::replace(&mut *state, State::Refusing { reserved: None }) {
            State::Serving {
                listener,
                end,
                accepting,
            } => {
                finish(end, accepting).await;
                listener
            }
            silent @ State::Silent { .. } => {
                *state = silent;
                return Ok(());
            }
            State::Refusing { reserved } => {
                let socket = reserved.map_or_else(|| listen::reserve(self.address), Ok);
                Arc::new(
                    socket
                        .and_then(listen::listen)
                        .map_err(|source| self.failed(source))?,
                )
            }
        };
        let shrunk = socket2::SockRef::from(&*listener).listen(0);
        shrunk.map_err(|source| self.failed(source))?;
        let fillers = self.fill().await?;
        *state = State::Silent { listener, fillers };
        Ok(())
    }

    /// Closes connections and refuses new ones.
    pub(crate) async fn refuse(&self) -> Result<(), PortError> {
        let mut state = self.state.lock().await;
        self.mode.send_replace(Mode::Refusing);
        if matches!(*state, State::Refusing { reserved: Some(_) }) {
            return Ok(());
        }
        if let State::Serving { end, accepting, .. } =
            std::mem::replace(&mut *state, State::Refusing { reserved: None })
        {
            finish(end, accepting).await;
        }
        let reserved = listen::reserve(self.address).map_err(|source| self.failed(source))?;
        *state = State::Refusing {
            reserved: Some(reserved),
        };
        Ok(())
    }

    /// Connects until it hangs. The connections must be kept: they are what fills the queue.
    async fn fill(&self) -> Result<Vec<TcpStream>, PortError> {
        let mut fillers = Vec::new();
        let mut hung = 0;
        while fillers.len() < FILLERS_MAX {
            match timeout(FULL_AFTER, TcpStream::connect(self.address)).await {
                Ok(Ok(stream)) => {
                    hung = 0;
                    fillers.push(stream);
                }
                Ok(Err(source)) => return Err(self.failed(source)),
                Err(_) => hung += 1,
            }
            if hung == 2 {
                return Ok(fillers);
            }
        }
        Err(PortError::NotSilent {
            address: self.address,
        })
    }

    fn failed(&self, source: io::Error) -> PortError {
        PortError::Listen {
            address: self.address,
            source,
        }
    }
}

async fn finish(end: CancellationToken, accepting: JoinHandle<()>) {
    end.cancel();
    if let Err(error) = accepting.await {
        tracing::error!(%error, "the task that accepted a hollow kubelet's connections had died before");
    }
}

/// Accepts until `end`; the connections themselves live on with the mode.
async fn accept(
    listener: Arc<TcpListener>,
    acceptor: TlsAcceptor,
    mode: watch::Receiver<Mode>,
    end: CancellationToken,
    tasks: TaskTracker,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let next = async {
            let permit = Arc::clone(&room).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            next = next => next,
            () = end.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let (acceptor, mode) = (acceptor.clone(), mode.clone());
                tasks.spawn(async move {
                    live_and_die(acceptor, stream, mode).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a hollow kubelet could not accept a connection");
                // Out of descriptors, most likely: trying again at once would spin.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Serves a connection while the port is served, keeps it open and mute while it is silent, and closes it otherwise.
async fn live_and_die(acceptor: TlsAcceptor, stream: TcpStream, mut mode: watch::Receiver<Mode>) {
    let mut mode_after = mode.clone();
    let mut work = pin!(serve(acceptor, stream));
    tokio::select! {
        ended = &mut work => {
            if let Err(error) = ended {
                tracing::trace!(%error, "a connection to a hollow kubelet ended");
            }
            return;
        }
        // An error means that the port has been dropped, which closes the connection too.
        _ = mode.wait_for(|mode| *mode != Mode::Serving) => {}
    }
    // `work` is not polled any more but still owns the socket, so that nothing goes out, not even a FIN.
    let _ = mode_after.wait_for(|mode| *mode != Mode::Silent).await;
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream) -> io::Result<()> {
    let idle = |_| io::Error::from(io::ErrorKind::TimedOut);
    let mut stream = timeout(IDLE_MAX, acceptor.accept(stream))
        .await
        .map_err(idle)??;
    let mut head = Vec::with_capacity(1_024);
    loop {
        let read = timeout(IDLE_MAX, stream.read_buf(&mut head))
            .await
            .map_err(idle)??;
        if read == 0 {
            return Ok(());
        }
        // A probe is a GET without a body, so that the end of the head is the end of the request.
        while let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            head.drain(..end + 4);
            stream.write_all(UNAUTHORIZED).await?;
            stream.flush().await?;
        }
        if head.len() > HEAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

fn acceptor(
    name: &str,
    address: SocketAddr,
) -> Result<TlsAcceptor, Box<dyn std::error::Error + Send + Sync>> {
    let certified =
        rcgen::generate_simple_self_signed(vec![name.to_owned(), address.ip().to_string()])?;
    let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let config =
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key.into())?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
