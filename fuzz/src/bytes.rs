//! Inputs of several parts: the length of each part in 16 bits, big-endian, is in front of it.

/// Splits an input into its parts. The last one may be short.
pub(crate) fn split(mut input: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    while let Some((length, rest)) = input.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (part, rest) = rest.split_at(length);
        parts.push(part.to_vec());
        input = rest;
    }
    parts
}

/// Joins parts to an input.
pub(crate) fn join(parts: &[Vec<u8>]) -> Vec<u8> {
    let with_length = |part: &Vec<u8>| {
        let length = u16::try_from(part.len()).expect("a short part");
        [&length.to_be_bytes()[..], part].concat()
    };
    parts.iter().flat_map(with_length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_split_into_the_parts_that_it_was_joined_from() {
        let parts = vec![vec![1, 2, 3], vec![], vec![4; 300]];
        let input = join(&parts);
        assert_eq!(split(&input), parts);
        assert_eq!(split(&input[..4]), [vec![1, 2]]);
        assert_eq!(split(&[0]), Vec::<Vec<u8>>::new());
    }
}
