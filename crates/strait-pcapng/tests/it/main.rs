//! Round trips between encoders and decoder, agreement with other programs, and damaged files.

mod corrupt;
mod handmade;
mod oracle;
mod owned;
mod round_trip;
