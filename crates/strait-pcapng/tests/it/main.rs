//! What the encoders write is what the decoder reads, and what other programs read; what is broken is named.

mod corrupt;
mod handmade;
mod oracle;
mod owned;
mod round_trip;
