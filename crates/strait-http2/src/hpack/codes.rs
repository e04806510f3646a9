//! Code of each byte (RFC 7541, appendix B). The code is canonical, so that the lengths determine
//! it: codes of one length are consecutive in the order of their bytes, and follow shorter ones.

/// Lengths of the codes of the bytes 0 to 255 in bits.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26,
];
/// Length of the longest codes. All ones in as many bits is the end of a string, which never occurs
/// in one.
const LENGTH_MAX: u8 = 30;

/// Codes of the bytes, right-aligned, and their lengths in bits.
pub(super) const CODES: [(u32, u8); 256] = codes();

const fn codes() -> [(u32, u8); 256] {
    let mut codes = [(0, 0); 256];
    let (mut code, mut length) = (0, 1);
    while length <= LENGTH_MAX {
        let mut byte = 0;
        while byte < LENGTHS.len() {
            if LENGTHS[byte] == length {
                codes[byte] = (code, length);
                code += 1;
            }
            byte += 1;
        }
        code <<= 1;
        length += 1;
    }
    codes
}
