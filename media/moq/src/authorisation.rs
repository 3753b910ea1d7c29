use std::fmt;

/// The secret that a client has to present: in the query of its URL, `?token=...` or `?jwt=...`, or as the
/// authorisation token of its SETUP.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// A token is not of the right form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a token has 16 to 128 letters, digits, '.', '_', '~' or '-'")]
pub struct InvalidToken;

/// The path and the query of a client's URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    path: &'a str,
    query: &'a str,
}

/// The reason to refuse a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The path is not the root.
    Path,
    /// The token is missing or wrong.
    Token,
}

impl Token {
    fn is(&self, presented: &[u8]) -> bool {
        let expected = self.0.as_bytes();
        let pairs = expected.iter().zip(presented);
        // All bytes are compared, so that the time does not depend on them.
        let difference = pairs.fold(0, |difference, (a, b)| difference | (a ^ b));
        expected.len() == presented.len() && difference == 0
    }
}

impl std::str::FromStr for Token {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._~-".contains(c);
        let is_token = (16..=128).contains(&text.len()) && text.chars().all(is_allowed);
        is_token.then(|| Token(text.to_owned())).ok_or(InvalidToken)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(secret)")
    }
}

impl<'a> Target<'a> {
    pub(crate) fn parse(text: &'a str) -> Self {
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        Target { path, query }
    }

    /// Checks the path, and the token if there is one. `setup` is the token of the client's SETUP.
    pub(crate) fn check(&self, token: Option<&Token>, setup: Option<&[u8]>) -> Result<(), Denied> {
        if !self.path.trim_matches('/').is_empty() {
            return Err(Denied::Path);
        }
        let Some(token) = token else {
            return Ok(());
        };
        let pairs = self
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        let named = pairs.filter(|(name, _)| matches!(*name, "token" | "jwt"));
        let mut presented = named.map(|(_, value)| value.as_bytes()).chain(setup);
        presented
            .any(|presented| token.is(presented))
            .then_some(())
            .ok_or(Denied::Token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn check(target: &str, setup: Option<&str>) -> Result<(), Denied> {
        let token = TOKEN.parse().unwrap();
        Target::parse(target).check(Some(&token), setup.map(str::as_bytes))
    }

    #[test]
    fn a_client_presents_the_token_in_its_url_or_its_setup() {
        assert_eq!(check("/?token=0123456789abcdef", None), Ok(()));
        assert_eq!(check("?a=b&jwt=0123456789abcdef", None), Ok(()));
        assert_eq!(check("", Some(TOKEN)), Ok(()));
    }

    #[test]
    fn others_are_refused() {
        for target in [
            "",
            "/",
            "/?token=",
            "/?token=0123456789abcde",
            "/?0123456789abcdef",
        ] {
            assert_eq!(check(target, None), Err(Denied::Token), "{target}");
        }
        assert_eq!(check("/", Some("0123456789abcdeF")), Err(Denied::Token));
        let path = check("/else?token=0123456789abcdef", None);
        assert_eq!(path, Err(Denied::Path));
        assert_eq!(Target::parse("/").check(None, None), Ok(()));
    }

    #[test]
    fn tokens_fit_a_url_and_do_not_print_themselves() {
        for wrong in ["", "short", "0123456789abcde f", "0123456789abcde%20"] {
            assert_eq!(wrong.parse::<Token>(), Err(InvalidToken));
        }
        let token: Token = TOKEN.parse().unwrap();
        assert_eq!(format!("{token:?}"), "Token(secret)");
    }
}
