//! Views through the codec `rgbd`: what is lossless, what a base layer alone gives, what it costs.

use crate::recordings;

use hawser_cloud::{Camera, Cloud, Extrinsics, Intrinsics, View};
use hawser_codec::rgbd::Layers;
use hawser_codec::{DecodeError, Decoder, Encoder, RgbdDecoder, RgbdEncoder, Setting};

/// A view of a sphere in front of nothing, with an odd number of columns and rows.
fn sphere() -> View {
    let (width, height) = (161, 121);
    let camera = Camera {
        intrinsics: Intrinsics {
            width,
            height,
            fx: 200.0,
            fy: 200.0,
            cx: 80.0,
            cy: 60.0,
        },
        extrinsics: Extrinsics {
            rotation: [[-1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]],
            translation_mm: [0.0, 0.0, 1000.0],
        },
    };
    let mut color = Vec::new();
    let mut depth = Vec::new();
    for at in 0..width * height {
        let (row, column) = ((at / width) as f32 - 60.0, (at % width) as f32 - 80.0);
        let square = 50.0 * 50.0 - row * row - column * column;
        depth.push(if square > 0.0 {
            (1000.0 - 4.0 * square.sqrt()) as u16
        } else {
            0
        });
        color.extend([100, (128.0 + row) as u8, (128.0 + column) as u8]);
    }
    View::new(camera, 1.0, color, depth).unwrap()
}

fn views() -> Vec<View> {
    let recorded = recordings::talker_views(125).into_iter().flatten();
    let recorded = recorded.chain(recordings::typist_views(24));
    [sphere()].into_iter().chain(recorded).collect()
}

/// Returns the peak signal to noise ratio of the colours of the pixels with depth, in decibels.
fn psnr(view: &View, decoded: &View) -> f64 {
    let mut sum = 0;
    let pixels = view
        .color()
        .as_chunks::<3>()
        .0
        .iter()
        .zip(decoded.color().as_chunks::<3>().0);
    for (depth, (before, after)) in view.depth().iter().zip(pixels) {
        let error = |channel: usize| u64::from(before[channel].abs_diff(after[channel])).pow(2);
        sum += if *depth != 0 {
            (0..3).map(error).sum()
        } else {
            0
        };
    }
    let mean = sum as f64 / (3 * view.points()) as f64;
    10.0 * (255.0 * 255.0 / mean).log10()
}

#[test]
fn depths_and_cameras_are_kept_and_colours_nearly() {
    for view in views() {
        for layers in [Layers::One, Layers::Two] {
            let encoded = RgbdEncoder::new(layers).encode(&view, Setting::BEST);
            let mut parts = encoded.parts();
            parts.reverse();
            let decoded = RgbdDecoder::new().decode(&parts).unwrap();
            assert_eq!(decoded.depth(), view.depth());
            assert_eq!(decoded.camera(), view.camera());
            assert_eq!(decoded.unit_mm(), view.unit_mm());
            let psnr = psnr(&view, &decoded);
            assert!(psnr > 39.0, "{psnr} dB");
        }
    }
}

#[test]
fn a_base_layer_is_a_quarter_of_the_points_in_their_place() {
    for view in views() {
        let encoded = RgbdEncoder::new(Layers::Two).encode(&view, Setting::BEST);
        let parts = encoded.parts();
        assert!(parts[0].len() * 2 < encoded.bytes());
        let base = RgbdDecoder::new().decode(&parts[..1]).unwrap();
        let (mut few, mut all) = (Cloud::new(), Cloud::new());
        base.add_to(&mut few);
        view.add_to(&mut all);
        assert!(few.len().abs_diff(all.len() / 4) < all.len() / 50);
        let positions: std::collections::HashSet<_> = all
            .points()
            .map(|point| (point.x, point.y, point.z))
            .collect();
        let found = few
            .points()
            .filter(|point| positions.contains(&(point.x, point.y, point.z)));
        let found = found.count();
        // A position on the edge of a millimetre may be rounded to either side.
        assert!(found * 1000 >= few.len() * 995, "{found} of {}", few.len());
    }
}

/// Returns a layer without its JPEG image.
fn without_colours(layer: &[u8]) -> Vec<u8> {
    // The length of the image is the second one after the header.
    let header = if layer[1] == 2 { 8 } else { 76 };
    let length = layer[header + 4..].first_chunk().unwrap();
    let length = u32::from_be_bytes(*length) as usize;
    let mut short = layer[..layer.len() - length].to_vec();
    short[header + 4..header + 8].fill(0);
    short
}

#[test]
fn a_view_of_more_pixels_than_its_bytes_justify_is_refused() {
    let (width, height) = (1024, 1024);
    let pixels = width * height;
    let camera = Camera {
        intrinsics: Intrinsics::centred(width, height, 1000.0),
        extrinsics: Extrinsics {
            rotation: [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
            translation_mm: [0.0; 3],
        },
    };
    let view = View::new(camera, 1.0, vec![0; 3 * pixels], vec![900; pixels]).unwrap();
    for layers in [Layers::One, Layers::Two] {
        let encoded = RgbdEncoder::new(layers).encode(&view, Setting::BEST);
        let parts = encoded.parts();
        assert!(RgbdDecoder::new().decode(&parts).is_ok());
        for bomb in 0..parts.len() {
            let short = without_colours(parts[bomb]);
            assert!(
                short.len() < 1000,
                "{} bytes for {pixels} pixels",
                short.len()
            );
            let mut parts = parts.clone();
            parts[bomb] = &short;
            let refused = RgbdDecoder::new().decode(&parts);
            assert_eq!(
                refused,
                Err(DecodeError::Malformed("not the depths of a view"))
            );
        }
    }
}

#[test]
fn a_refinement_without_its_base_is_refused() {
    let mut other = sphere();
    other.depth_mut()[60 * 161 + 80] += 1;
    let encode = |view: &View, quality| {
        let encoded = RgbdEncoder::new(Layers::Two).encode(view, Setting { quality });
        encoded.layers.concat()
    };
    let (best, coarse) = (encode(&sphere(), 100), encode(&sphere(), 60));
    let mut decoder = RgbdDecoder::new();
    assert_eq!(decoder.decode(&[&best[1]]), Err(DecodeError::Missing));
    assert_eq!(decoder.decode(&[]), Err(DecodeError::Missing));
    let refused = Err(DecodeError::Malformed("a refinement of another view"));
    assert_eq!(decoder.decode(&[&best[0], &coarse[1]]), refused);
    let twice = Err(DecodeError::Malformed("two parts of one layer"));
    assert_eq!(decoder.decode(&[&best[0], &best[0]]), twice);
}

#[test]
fn a_lower_quality_is_smaller_and_moves_depths_by_half_a_step() {
    for view in views() {
        let mut last = usize::MAX;
        for (quality, step) in [(100, 1), (75, 1), (50, 2), (30, 4), (10, 8)] {
            for layers in [Layers::One, Layers::Two] {
                let encoded = RgbdEncoder::new(layers).encode(&view, Setting { quality });
                let decoded = RgbdDecoder::new().decode(&encoded.parts()).unwrap();
                let depths = view.depth().iter().zip(decoded.depth());
                for (before, after) in depths {
                    assert_eq!(*before == 0, *after == 0);
                    assert!(before.abs_diff(*after) <= step / 2);
                }
                if layers == Layers::Two {
                    assert!(encoded.bytes() < last);
                    last = encoded.bytes();
                }
            }
        }
        let half = RgbdEncoder::new(Layers::Two).encode(&view, Setting { quality: 2 });
        assert_eq!((half.layers.len(), half.bytes() < last), (1, true));
    }
}

#[test]
fn colours_of_the_background_cost_nothing() {
    let view = sphere();
    let mut color = view.color().to_vec();
    for (depth, color) in view.depth().iter().zip(color.as_chunks_mut::<3>().0) {
        if *depth == 0 {
            *color = color.map(|channel| channel.wrapping_mul(77));
        }
    }
    let noisy = View::new(*view.camera(), 1.0, color, view.depth().to_vec()).unwrap();
    let mut encoder = RgbdEncoder::new(Layers::Two);
    assert_eq!(
        encoder.encode(&noisy, Setting::BEST),
        encoder.encode(&view, Setting::BEST)
    );
}

#[test]
fn a_view_without_depth_is_a_view() {
    let mut view = sphere();
    view.depth_mut().fill(0);
    let encoded = RgbdEncoder::new(Layers::Two).encode(&view, Setting::BEST);
    let decoded = RgbdDecoder::new().decode(&encoded.parts()).unwrap();
    assert_eq!(decoded.points(), 0);
}
