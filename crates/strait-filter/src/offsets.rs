//! Offsets of members of kernel structures, which programs load and callers find in the kernel's
//! BTF.
//!
//! A module with such programs makes its own type of offsets by this macro.

/// Makes a type `Offsets` of a list of fields, each with its structure and member.
macro_rules! offsets {
    ($($(#[$about:meta])* $field:ident: $structure:ident.$member:ident,)+) => {
        /// Offsets in bytes in structures of the running kernel.
        #[allow(missing_docs, reason = "the names are the kernel's")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Offsets {
            $($(#[$about])* pub $field: i16,)+
        }

        impl Offsets {
            /// Structure and member of each offset, in the order of [`Offsets::new`].
            pub const MEMBERS: [(&str, &str); [$(stringify!($field)),+].len()] =
                [$((stringify!($structure), stringify!($member))),+];

            /// Takes the offsets of [`Offsets::MEMBERS`]; `None` if one is beyond the reach of an
            /// instruction.
            pub fn new(found: [u32; Self::MEMBERS.len()]) -> Option<Self> {
                let [$($field),+] = found;
                Some(Self { $($field: i16::try_from($field).ok()?),+ })
            }
        }
    };
}

pub(crate) use offsets;
