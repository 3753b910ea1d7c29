use crate::View;
use std::ops::RangeInclusive;

/// The removal of all that is not the captured person from a view, by its depths.
///
/// A pixel that is removed gets the depth 0. The result depends on the view alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Background {
    /// The depths that are kept, in millimetres.
    pub range_mm: RangeInclusive<f32>,
    /// The largest difference of depth, in millimetres, between neighbouring pixels of one part. Only
    /// the part with the most pixels is kept. `None` keeps all parts.
    pub max_step_mm: Option<f32>,
}

impl Background {
    /// Removes the background of a view.
    pub fn remove(&self, view: &mut View) {
        let unit_mm = view.unit_mm();
        let (width, _) = view.size();
        let depth = view.depth_mut();
        for depth in depth.iter_mut() {
            if !self.range_mm.contains(&(f32::from(*depth) * unit_mm)) {
                *depth = 0;
            }
        }
        if let Some(step) = self.max_step_mm {
            // A step of 65,535 units or more connects all neighbours.
            keep_largest_part(depth, width, (step / unit_mm) as u16);
        }
    }
}

/// Sets all depths to 0 but those of the largest part of pixels that are connected along rows and
/// columns. Of parts with the same number of pixels it keeps the one that begins first.
fn keep_largest_part(depth: &mut [u16], width: usize, max_step: u16) {
    let mut parts = Parts::default();
    let labels = parts.label(depth, width, max_step);
    let mut sizes = vec![0u32; parts.parents.len()];
    for label in labels.iter().filter(|label| **label != NONE) {
        sizes[parts.root(*label) as usize] += 1;
    }
    let Some(largest) = (0..sizes.len()).rev().max_by_key(|label| sizes[*label]) else {
        return;
    };
    for (depth, label) in depth.iter_mut().zip(labels) {
        if label != NONE && parts.root(label) as usize != largest {
            *depth = 0;
        }
    }
}

/// The label of a pixel without depth.
const NONE: u32 = u32::MAX;

/// Labels of pixels; each points to a lower one of the same part, or to itself.
#[derive(Default)]
struct Parts {
    parents: Vec<u32>,
}

impl Parts {
    /// Returns a label of the part of each pixel.
    fn label(&mut self, depth: &[u16], width: usize, max_step: u16) -> Vec<u32> {
        let mut labels: Vec<u32> = Vec::with_capacity(depth.len());
        for (at, &here) in depth.iter().enumerate() {
            let connected = |neighbour: usize| {
                here != 0 && depth[neighbour] != 0 && depth[neighbour].abs_diff(here) <= max_step
            };
            let left = (at % width > 0 && connected(at - 1)).then(|| labels[at - 1]);
            let up = (at >= width && connected(at - width)).then(|| labels[at - width]);
            labels.push(match (left, up) {
                _ if here == 0 => NONE,
                (Some(left), Some(up)) => self.join(left, up),
                (Some(label), None) | (None, Some(label)) => label,
                (None, None) => self.begin(),
            });
        }
        labels
    }

    fn begin(&mut self) -> u32 {
        let label = self.parents.len() as u32;
        self.parents.push(label);
        label
    }

    fn root(&mut self, mut label: u32) -> u32 {
        while self.parents[label as usize] != label {
            let above = self.parents[self.parents[label as usize] as usize];
            self.parents[label as usize] = above;
            label = above;
        }
        label
    }

    /// Makes two labels those of one part, and returns its first.
    fn join(&mut self, a: u32, b: u32) -> u32 {
        let (a, b) = (self.root(a), self.root(b));
        self.parents[a.max(b) as usize] = a.min(b);
        a.min(b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Camera, Extrinsics, Intrinsics};
    use proptest::prelude::*;

    fn view(width: usize, depth: &[u16]) -> View {
        let camera = Camera {
            intrinsics: Intrinsics {
                width,
                height: depth.len() / width,
                fx: 1.0,
                fy: 1.0,
                cx: 0.0,
                cy: 0.0,
            },
            extrinsics: Extrinsics {
                rotation: [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
                translation_mm: [0.0; 3],
            },
        };
        View::new(camera, 0.5, vec![0; 3 * depth.len()], depth.to_vec()).unwrap()
    }

    fn removed(width: usize, depth: &[u16], background: &Background) -> Vec<u16> {
        let mut view = view(width, depth);
        background.remove(&mut view);
        view.depth().to_vec()
    }

    #[test]
    fn what_is_out_of_range_or_apart_is_removed() {
        // A person of three depths around 1 m, a wall, and a speck beside them.
        #[rustfmt::skip]
        let depth = [
            9000, 2000,    0, 2050,
            2010, 2020, 9000,    0,
               0, 9000, 2040, 9000,
        ];
        let background = Background {
            range_mm: 500.0..=2000.0,
            max_step_mm: Some(10.0),
        };
        #[rustfmt::skip]
        let person = [
               0, 2000,    0,    0,
            2010, 2020,    0,    0,
               0,    0,    0,    0,
        ];
        assert_eq!(removed(4, &depth, &background), person);
        let range = Background {
            max_step_mm: None,
            ..background
        };
        let kept = removed(4, &depth, &range);
        assert_eq!(kept.iter().filter(|depth| **depth != 0).count(), 5);
    }

    #[test]
    fn parts_that_meet_late_are_one_and_a_step_in_depth_divides() {
        let background = |step| Background {
            range_mm: 0.0..=f32::INFINITY,
            max_step_mm: Some(step),
        };
        // A U, whose arms meet in the last row, beside a bar of four pixels.
        let depth = [7, 0, 7, 0, 9, 7, 0, 7, 0, 9, 7, 7, 7, 0, 9, 0, 0, 0, 0, 9];
        let u = [7, 0, 7, 0, 0, 7, 0, 7, 0, 0, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(removed(5, &depth, &background(0.0)), u);
        // The first of equal parts stays; a larger step joins them.
        assert_eq!(removed(4, &[7, 7, 9, 9], &background(0.5)), [7, 7, 0, 0]);
        assert_eq!(removed(4, &[7, 7, 9, 9], &background(1.0)), [7, 7, 9, 9]);
    }

    proptest! {
        #[test]
        fn what_is_kept_is_connected_and_no_part_is_larger(
            depth in prop::collection::vec(0u16..4, 12..200),
            width in 1usize..12,
        ) {
            let depth = &depth[..depth.len() / width * width];
            let background = Background { range_mm: 0.0..=10.0, max_step_mm: Some(0.5) };
            let kept = removed(width, depth, &background);
            let parts = parts_by_flood(depth, width);
            let largest = parts.iter().map(Vec::len).max().unwrap_or(0);
            let of_kept: Vec<usize> = (0..kept.len()).filter(|at| kept[*at] != 0).collect();
            prop_assert_eq!(of_kept.len(), largest);
            prop_assert!(largest == 0 || parts.contains(&of_kept));
        }
    }

    /// Returns the parts, found by flooding from each pixel.
    fn parts_by_flood(depth: &[u16], width: usize) -> Vec<Vec<usize>> {
        let mut left: Vec<bool> = depth.iter().map(|depth| *depth != 0).collect();
        let mut parts = Vec::new();
        for start in 0..depth.len() {
            let (mut part, mut open) = (Vec::new(), vec![start]);
            while let Some(at) = open.pop() {
                if !std::mem::replace(&mut left[at], false) {
                    continue;
                }
                part.push(at);
                let sides = [
                    (at % width > 0).then(|| at - 1),
                    (at % width + 1 < width).then(|| at + 1),
                    at.checked_sub(width),
                    (at + width < depth.len()).then(|| at + width),
                ];
                let near = |side: &usize| depth[*side].abs_diff(depth[at]) <= 1;
                open.extend(
                    sides
                        .into_iter()
                        .flatten()
                        .filter(|side| left[*side] && near(side)),
                );
            }
            part.sort_unstable();
            parts.extend((!part.is_empty()).then_some(part));
        }
        parts
    }
}
