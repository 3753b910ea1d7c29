//! The controller's explanations in the words of the command line.
//!
//! The controller names requests, for those who use its interface directly.

/// Requests as the controller names them, and the commands that send them.
const REQUESTS: [(&str, &str); 15] = [
    (
        "POST /v1/nodes/NAME/enrolment",
        "`hawser ctl node enrol NAME --tenant TENANT`",
    ),
    (
        "DELETE /v1/nodes/NAME/enrolment/ID",
        "`hawser ctl enrolment withdraw NAME ID`",
    ),
    ("GET /v1/enrolments", "`hawser ctl enrolment list`"),
    (
        "PATCH /v1/tenants/NAME",
        "`hawser ctl tenant set NAME --description TEXT`",
    ),
    ("POST /v1/tenants", "`hawser ctl tenant create NAME`"),
    ("GET /v1/tenants", "`hawser ctl tenant list`"),
    ("GET /v1/nodes", "`hawser ctl node list`"),
    ("GET /v1/flows", "`hawser ctl flow list`"),
    ("PUT /v1/flows/NAME", "`hawser ctl flow set NAME`"),
    ("GET /v1/tracks", "`hawser ctl track list`"),
    ("PUT /v1/tracks/NAME", "`hawser ctl track set`"),
    ("GET /v1/tokens", "`hawser ctl token list`"),
    (
        "POST /v1/tokens/NAME/secret",
        "`hawser ctl token rotate NAME`",
    ),
    ("POST /v1/tokens", "`hawser ctl token create NAME`"),
    ("?tenant= or ?node=", "--tenant or --node"),
];

/// Replaces requests with the commands that send them.
pub(crate) fn translate(text: &str) -> String {
    REQUESTS
        .iter()
        .fold(text.to_owned(), |text, (request, command)| {
            text.replace(request, command)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// Calls `examine` with every line of Rust below a folder that is no comment.
    fn lines(folder: &Path, examine: &mut impl FnMut(&str)) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                lines(&path, examine);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let code = text.lines().map(str::trim);
            code.filter(|line| !line.starts_with("//"))
                .for_each(&mut *examine);
        }
    }

    #[test]
    fn every_request_that_the_controller_names_has_a_command() {
        let controller = Path::new(env!("CARGO_MANIFEST_DIR")).join("../controller/src");
        let mut named = 0;
        lines(&controller, &mut |line| {
            let methods = ["GET /v1", "POST /v1", "PUT /v1", "PATCH /v1", "DELETE /v1"];
            if methods.iter().any(|method| line.contains(method)) {
                named += 1;
                let translated = translate(line);
                assert!(!translated.contains(" /v1"), "{translated}");
            }
        });
        assert!(named > 10, "{named}");
    }

    #[test]
    fn requests_are_named_as_commands() {
        assert_eq!(
            translate("there is no tenant acme; create it first: POST /v1/tenants"),
            "there is no tenant acme; create it first: `hawser ctl tenant create NAME`"
        );
        assert_eq!(
            translate("GET /v1/nodes lists all nodes, POST /v1/nodes/NAME/enrolment creates one"),
            "`hawser ctl node list` lists all nodes, `hawser ctl node enrol NAME --tenant TENANT` creates one"
        );
    }
}
