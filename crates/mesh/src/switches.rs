//! Parts of the member that a test may switch off, to show what they guard.
//!
//! Only [`crate::Mesh::with_switches`] takes them: no configuration reaches them.

/// What is on. Everything is, but in a test that shows what happens without.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Lifeguard's local health: timeouts stretch, and who doubts itself, hears nobody or
    /// misses most subjects alone accuses nobody.
    pub local_health: bool,
    /// Several accusers bring a member down; without, one is enough.
    pub distinct_accusers: bool,
    /// Co-observers are asked before a subject is accused; without, one lost probe is enough.
    pub indirect_probes: bool,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            local_health: true,
            distinct_accusers: true,
            indirect_probes: true,
        }
    }
}
