//! `serde` for types that have a text form: the text, whatever the format.

/// Serializes a type by its `Display`, and deserializes it by a function of its text.
#[doc(hidden)]
#[macro_export]
macro_rules! serde_as_text {
    ($type:ty, $parse:expr) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(
                &self,
                out: S,
            ) -> ::std::result::Result<S::Ok, S::Error> {
                out.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(
                input: D,
            ) -> ::std::result::Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(input)?;
                $parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}
