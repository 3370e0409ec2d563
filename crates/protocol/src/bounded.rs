//! A list that cannot be longer than its limit, on this side of the wire and on the other.

use std::ops::Deref;

use bincode::de::{BorrowDecode, BorrowDecoder, Decode, Decoder};
use bincode::enc::{Encode, Encoder};
use bincode::error::{DecodeError, EncodeError};

/// A list of at most `MAX` items.
///
/// Decoding reserves nothing ahead: memory grows with the items that really
/// arrived, and each takes at least one byte of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounded<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> Bounded<T, MAX> {
    /// The longest list.
    pub const MAX: usize = MAX;

    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends an item; gives it back if the list is full.
    ///
    /// # Errors
    /// The item, if the list already holds `MAX` items.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.0.len() < MAX {
            self.0.push(item);
            Ok(())
        } else {
            Err(item)
        }
    }

    /// The first `MAX` items of `items`; the rest stays in the iterator.
    pub fn fill(items: &mut impl Iterator<Item = T>) -> Self {
        Self(items.take(MAX).collect())
    }

    /// The items.
    #[must_use]
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MAX: usize> Default for Bounded<T, MAX> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const MAX: usize> Deref for Bounded<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T, const MAX: usize> IntoIterator for Bounded<T, MAX> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T, const MAX: usize> IntoIterator for &'a Bounded<T, MAX> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T: Encode, const MAX: usize> Encode for Bounded<T, MAX> {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        length(self.0.len()).encode(encoder)?;
        self.0.iter().try_for_each(|item| item.encode(encoder))
    }
}

impl<C, T: Decode<C>, const MAX: usize> Decode<C> for Bounded<T, MAX> {
    fn decode<D: Decoder<Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
        let len = usize::from(u16::decode(decoder)?);
        if len > MAX {
            return Err(DecodeError::OtherString(format!(
                "a list of {len} items, {MAX} at most"
            )));
        }
        let mut items = Vec::new();
        for _ in 0..len {
            items.push(T::decode(decoder)?);
        }
        Ok(Self(items))
    }
}

impl<'de, C, T: Decode<C>, const MAX: usize> BorrowDecode<'de, C> for Bounded<T, MAX> {
    fn borrow_decode<D: BorrowDecoder<'de, Context = C>>(
        decoder: &mut D,
    ) -> Result<Self, DecodeError> {
        Self::decode(decoder)
    }
}

/// A list's length as it travels. Every `MAX` in this crate is below 65,536.
fn length(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}
