//! What a member remembers over a restart: its generation, its last peers, and the
//! secret by which peers notice the restart at once.
//!
//! The state directory is a convenience, never a need: an unreadable file costs a
//! warning, and the member starts without it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use swimlet_protocol::Generation;
use tracing::warn;

/// Most peers remembered: enough that some of them are still there after an outage.
const PEERS_MAX: usize = 64;
/// Largest state file that is read, in bytes: 64 peers take about 2 KB.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The state file of a member.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: Option<PathBuf>,
    content: Content,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Content {
    generation: u64,
    peers: Vec<SocketAddr>,
    /// Keys QUIC's stateless resets. Known to nobody else: who has it can make
    /// peers drop their links to us, and no more.
    reset_seed: Option<[u8; 32]>,
}

impl StateFile {
    /// Reads the file in `directory`; without a directory nothing is remembered.
    pub(crate) fn open(directory: Option<&Path>) -> Self {
        let path = directory.map(|directory| directory.join("member.json"));
        let content = path.as_deref().map_or_else(Content::default, |path| {
            read(path).unwrap_or_else(|error| {
                warn!(path = %path.display(), %error, "the state file is not usable; starting without it");
                Content::default()
            })
        });
        Self { path, content }
    }

    /// Peers that were there before the restart.
    pub(crate) fn peers(&self) -> &[SocketAddr] {
        &self.content.peers
    }

    /// The secret of the stateless resets; drawn at the first start.
    pub(crate) fn reset_seed(&mut self) -> [u8; 32] {
        if let Some(seed) = self.content.reset_seed {
            return seed;
        }
        let mut seed = [0; 32];
        let random = rustls::crypto::ring::default_provider().secure_random;
        if random.fill(&mut seed).is_err() {
            warn!("the operating system gave no randomness; peers will notice a restart later");
        }
        self.content.reset_seed = Some(seed);
        self.save();
        seed
    }

    /// Takes the generation of this start and writes it down: the wall clock in
    /// milliseconds, or one more than the last, if the clock was set back.
    pub(crate) fn next_generation(&mut self) -> Generation {
        let next = wall_clock_ms().max(self.content.generation.saturating_add(1));
        self.content.generation = next;
        self.save();
        Generation(next)
    }

    /// Remembers these peers, if they are others than before.
    pub(crate) fn remember(&mut self, peers: impl Iterator<Item = SocketAddr>) {
        let peers: Vec<_> = peers.take(PEERS_MAX).collect();
        if !peers.is_empty() && peers != self.content.peers {
            self.content.peers = peers;
            self.save();
        }
    }

    fn save(&self) {
        let Some(path) = &self.path else { return };
        if let Err(error) = write(path, &self.content) {
            warn!(path = %path.display(), %error, "the state file cannot be written; a restart will start without it");
        }
    }
}

fn read(path: &Path) -> std::io::Result<Content> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Content::default()),
        Err(error) => return Err(error),
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => {
            return Err(std::io::Error::other("the file is too large"));
        }
        Ok(_) => {}
    }
    let mut content: Content = serde_json::from_slice(&std::fs::read(path)?)?;
    content.peers.truncate(PEERS_MAX);
    Ok(content)
}

/// Writes beside the file and renames, so that a crash leaves the old one.
fn write(path: &Path, content: &Content) -> std::io::Result<()> {
    let beside = path.with_extension("json.new");
    std::fs::write(&beside, serde_json::to_vec(content)?)?;
    std::fs::rename(beside, path)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a generation must grow over restarts, and only the wall clock does"
)]
fn wall_clock_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("swimlet-state-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Scenario 11: a clock in the past must not give a generation in the past.
    #[test]
    fn the_generation_grows_even_if_the_clock_was_set_back() {
        let directory = directory("grows");
        let future = Content {
            generation: wall_clock_ms() + 86_400_000,
            ..Content::default()
        };
        write(&directory.join("member.json"), &future).unwrap();
        let first = StateFile::open(Some(&directory)).next_generation();
        let second = StateFile::open(Some(&directory)).next_generation();
        assert!(first.0 > future.generation && second > first);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn peers_survive_a_restart_and_garbage_costs_only_them() {
        let directory = directory("peers");
        let peer: SocketAddr = "10.0.0.1:10270".parse().unwrap();
        StateFile::open(Some(&directory)).remember(std::iter::once(peer));
        assert_eq!(StateFile::open(Some(&directory)).peers(), [peer]);
        std::fs::write(directory.join("member.json"), "{\"generation\": -1").unwrap();
        assert!(StateFile::open(Some(&directory)).peers().is_empty());
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_reset_seed_is_drawn_once() {
        let directory = directory("seed");
        let first = StateFile::open(Some(&directory)).reset_seed();
        assert_eq!(StateFile::open(Some(&directory)).reset_seed(), first);
        assert_ne!(StateFile::open(None).reset_seed(), first);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn without_a_directory_nothing_is_written() {
        let mut state = StateFile::open(None);
        state.remember(std::iter::once("10.0.0.1:1".parse().unwrap()));
        assert!(state.next_generation().0 > 0);
    }
}
