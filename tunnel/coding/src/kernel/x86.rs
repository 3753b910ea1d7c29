//! Kernels for x86. Without GFNI, a product is the sum of two table look-ups, which `PSHUFB`
//! performs on a whole vector.

#![allow(unsafe_code, reason = "loads and stores of vectors")]

mod avx2;
mod avx512;
mod gfni256;
mod gfni512;
mod masked;
mod ssse3;

use super::Kernel;

/// Returns the kernels that the processor supports, the fastest last.
pub(super) fn detect() -> impl Iterator<Item = Kernel> {
    let avx2 = is_x86_feature_detected!("avx2");
    let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    let gfni = is_x86_feature_detected!("gfni");
    [
        (
            is_x86_feature_detected!("ssse3"),
            Kernel {
                name: "ssse3",
                combine: ssse3::combine,
            },
        ),
        (
            avx2,
            Kernel {
                name: "avx2",
                combine: avx2::combine,
            },
        ),
        (
            avx512,
            Kernel {
                name: "avx512",
                combine: avx512::combine,
            },
        ),
        (
            avx2 && gfni,
            Kernel {
                name: "gfni256",
                combine: gfni256::combine,
            },
        ),
        (
            avx512 && gfni,
            Kernel {
                name: "gfni512",
                combine: gfni512::combine,
            },
        ),
    ]
    .into_iter()
    .filter_map(|(detected, kernel)| detected.then_some(kernel))
}
