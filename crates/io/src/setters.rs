//! Builder methods of option types.

/// Defines builder methods in an `impl` block. Each method sets the public field of its name.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($($field:ident: $type:ty,)+) => {
        $(
            #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
            #[must_use]
            pub fn $field(self, $field: $type) -> Self {
                Self { $field: $field.into(), ..self }
            }
        )+
    };
}
