//! Quantities as scenario files write them: `"1.5s"`, `"0.5%"`. Integers inside.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A length of time in whole microseconds, written as `"250us"`, `"500ms"`, `"1.5s"`, `"10m"` or `"2h"`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Span(u64);

/// A probability or a part of a whole in millionths, written as `"15%"`, `"0.25%"` or `"40ppm"`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Ppm(u32);

/// A text that is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a length of time.
    #[error("{0:?} is no length of time; write 250us, 500ms, 1.5s, 10m or 2h")]
    Span(String),
    /// Not a share.
    #[error("{0:?} is no share; write 15%, 0.25% or 40ppm, at most 100%")]
    Ppm(String),
}

/// Microseconds of each unit; the longer suffix of two that fit comes first.
const SPAN_UNITS: [(&str, u64); 5] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
];
const PPM_UNITS: [(&str, u64); 2] = [("%", 10_000), ("ppm", 1)];
const PPM_MAX: u64 = 1_000_000;

impl Span {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// So many microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// So many milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000)
    }

    /// So many seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs * 1_000_000)
    }

    /// In microseconds.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// As the standard library has it.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_micros(self.0)
    }
}

impl Ppm {
    /// Never.
    pub const ZERO: Self = Self(0);
    /// Always, or all.
    pub const ONE: Self = Self(1_000_000);

    /// So many millionths; more than all of them is all.
    #[must_use]
    pub const fn new(ppm: u32) -> Self {
        Self(if ppm > 1_000_000 { 1_000_000 } else { ppm })
    }

    /// So many percent; more than 100 is 100.
    #[must_use]
    pub const fn percent(percent: u32) -> Self {
        Self::new(percent.saturating_mul(10_000))
    }

    /// In millionths, 0 to 1,000,000.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// This part of `whole`, rounded up.
    #[must_use]
    pub fn of(self, whole: usize) -> usize {
        (whole * self.0 as usize).div_ceil(PPM_MAX as usize)
    }
}

/// A decimal number with one of the units, in the smallest unit.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit.trim())?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || part.len() > 6 {
        return None;
    }
    let mut value = whole.parse::<u64>().ok()?.checked_mul(*scale)?;
    if !part.is_empty() {
        let tens = 10_u64.pow(u32::try_from(part.len()).ok()?);
        let scaled = part.parse::<u64>().ok()?.checked_mul(*scale)?;
        // A part of the smallest unit cannot be kept, so it is refused.
        if !scaled.is_multiple_of(tens) {
            return None;
        }
        value = value.checked_add(scaled / tens)?;
    }
    Some(value)
}

/// The largest unit that divides the value.
fn write(value: u64, units: &[(&str, u64)]) -> String {
    let fits = |(_, scale): &&(&str, u64)| value.is_multiple_of(*scale);
    let (name, scale) = units
        .iter()
        .filter(fits)
        .max_by_key(|(_, scale)| *scale)
        .copied()
        .unwrap_or(units[0]);
    format!("{}{name}", value / scale)
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse(text, &SPAN_UNITS)
            .map(Self)
            .ok_or_else(|| UnitError::Span(text.chars().take(32).collect()))
    }
}

impl FromStr for Ppm {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse(text, &PPM_UNITS)
            .filter(|ppm| *ppm <= PPM_MAX)
            .and_then(|ppm| u32::try_from(ppm).ok())
            .map(Self)
            .ok_or_else(|| UnitError::Ppm(text.chars().take(32).collect()))
    }
}

impl TryFrom<String> for Span {
    type Error = UnitError;

    fn try_from(text: String) -> Result<Self, UnitError> {
        text.parse()
    }
}

impl TryFrom<String> for Ppm {
    type Error = UnitError;

    fn try_from(text: String) -> Result<Self, UnitError> {
        text.parse()
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.to_string()
    }
}

impl From<Ppm> for String {
    fn from(ppm: Ppm) -> Self {
        ppm.to_string()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        f.write_str(&write(self.0, &SPAN_UNITS))
    }
}

impl fmt::Display for Ppm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0%");
        }
        f.write_str(&write(self.0.into(), &[("ppm", 1), ("%", 10_000)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards that files are read as people write them, and written as they are read.
    #[test]
    fn quantities_survive_a_round_trip() {
        for (text, micros) in [
            ("250us", 250),
            ("500ms", 500_000),
            ("1.5s", 1_500_000),
            ("10m", 600_000_000),
            ("2h", 7_200_000_000),
            ("0s", 0),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.as_micros(), micros, "{text}");
            assert_eq!(span.to_string().parse(), Ok(span), "{text}");
        }
        for (text, ppm) in [
            ("15%", 150_000),
            ("0.25%", 2_500),
            ("40ppm", 40),
            ("100%", 1_000_000),
        ] {
            let share: Ppm = text.parse().unwrap();
            assert_eq!(share.get(), ppm, "{text}");
            assert_eq!(share.to_string().parse(), Ok(share), "{text}");
        }
    }

    /// Guards that a quantity that cannot be kept is refused and not rounded.
    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in [
            "",
            "s",
            "5",
            "-1s",
            "0.5us",
            "1 day",
            "99999999999999h",
            "1.2.3s",
        ] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        for text in ["", "101%", "5", "-1%", "0.5ppm"] {
            assert!(text.parse::<Ppm>().is_err(), "{text}");
        }
    }
}
