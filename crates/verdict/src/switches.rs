//! Parts of the judge that a test may switch off, to show what they guard.
//!
//! Only [`crate::Judge::with_switches`] takes them: no configuration reaches them.

/// What is on. Everything is, but in a test that shows what happens without.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Verifiers are asked before a node is held unreachable; without, the silence that
    /// observers claim is enough.
    pub verification: bool,
    /// Only a path that worked can fail.
    pub baseline: bool,
    /// The brakes by their numbers: minority, share, graded.
    pub brakes: [bool; 3],
    /// Several hosts must find a node silent; without, one is enough.
    pub distinct_accusers: bool,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            verification: true,
            baseline: true,
            brakes: [true; 3],
            distinct_accusers: true,
        }
    }
}
