//! Values as callers have them: everything that a tree takes as the bytes of a value.

use std::borrow::Cow;
use std::sync::Arc;

/// Conversion into the bytes of a value, for [`Tree::add`](crate::Tree::add) and like calls.
///
/// Owned bytes are moved; borrowed bytes are copied once. Both methods give the same bytes.
pub trait IntoValue {
    /// Returns the bytes as they are.
    fn bytes(&self) -> &[u8];

    /// Returns the bytes for a tree to keep.
    fn into_value(self) -> Box<[u8]>;
}

/// Implements the conversion by `From` for types that the standard library converts.
macro_rules! by_from {
    ($($source:ty),* $(,)?) => {$(
        impl IntoValue for $source {
            fn bytes(&self) -> &[u8] {
                self.as_ref()
            }

            fn into_value(self) -> Box<[u8]> {
                self.into()
            }
        }
    )*};
}

by_from!(Box<[u8]>, Vec<u8>, &[u8], Cow<'_, [u8]>);

impl<const N: usize> IntoValue for [u8; N] {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn into_value(self) -> Box<[u8]> {
        self.into()
    }
}

impl<const N: usize> IntoValue for &[u8; N] {
    fn bytes(&self) -> &[u8] {
        self.as_slice()
    }

    fn into_value(self) -> Box<[u8]> {
        self.as_slice().into()
    }
}

impl IntoValue for &str {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn into_value(self) -> Box<[u8]> {
        self.as_bytes().into()
    }
}

impl IntoValue for String {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn into_value(self) -> Box<[u8]> {
        self.into_bytes().into()
    }
}

impl IntoValue for &Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn into_value(self) -> Box<[u8]> {
        self.as_slice().into()
    }
}

impl IntoValue for &String {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn into_value(self) -> Box<[u8]> {
        self.as_bytes().into()
    }
}

impl IntoValue for Arc<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn into_value(self) -> Box<[u8]> {
        self.as_ref().into()
    }
}
