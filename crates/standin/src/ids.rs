//! Repeatable identifiers: a seeded generator instead of ambient randomness, so that two runs of a test see the same
//! UIDs and the same generated names.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): small, seedable, and good enough for identifiers and jitter.
#[derive(Debug)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A UUID of version 4 in its usual spelling, as `metadata.uid` has it.
    pub(crate) fn uid(&mut self) -> String {
        let high = (self.next() & 0xFFFF_FFFF_FFFF_0FFF) | 0x4000;
        let low = (self.next() & 0x3FFF_FFFF_FFFF_FFFF) | 0x8000_0000_0000_0000;
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xFFFF,
            high & 0xFFFF,
            low >> 48,
            low & 0xFFFF_FFFF_FFFF,
        )
    }

    /// The five characters that `generateName` appends; the alphabet is that of `k8s.io/apimachinery/pkg/util/rand`,
    /// which has no vowels, so that no word appears by accident.
    pub(crate) fn suffix(&mut self) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut bits = self.next();
        let mut suffix = String::with_capacity(5);
        for _ in 0..5 {
            let index = (bits % ALPHABET.len() as u64) as usize;
            bits /= ALPHABET.len() as u64;
            suffix.push(char::from(ALPHABET[index]));
        }
        suffix
    }

    /// A factor in `[1, 1 + spread)`, as client-go's `wait.Jitter` stretches a period.
    pub(crate) fn stretch(&mut self, spread: f64) -> f64 {
        // 53 bits are what an f64 holds exactly.
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        1.0 + spread * unit
    }
}

#[cfg(test)]
mod tests {
    use super::SplitMix64;

    /// Guards that identifiers are well formed, differ from one another and repeat with the seed.
    #[test]
    fn identifiers_repeat_with_the_seed_and_are_well_formed() {
        let mut ids = SplitMix64::new(7);
        let first = ids.uid();
        let second = ids.uid();
        assert_ne!(first, second);
        assert_eq!(first, SplitMix64::new(7).uid());
        assert_eq!(first.len(), 36);
        assert_eq!(first.as_bytes()[14], b'4', "version nibble of {first}");
        assert!(
            b"89ab".contains(&first.as_bytes()[19]),
            "variant of {first}"
        );
        assert_eq!(ids.suffix().len(), 5);
        assert!((1.0..1.04).contains(&ids.stretch(0.04)));
    }
}
