//! Every constant of the mesh, with its reason.

/// Most seed addresses kept: a headless Service of three aggregators in two
/// families has six, a list written by hand is hardly longer than this.
pub const SEEDS_MAX: usize = 32;
/// Most remembered peer addresses kept.
pub const PEERS_MAX: usize = 64;
