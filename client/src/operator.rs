use crate::error::Error;
use crate::stream::Events;
use crate::tls::{self, Proof};
use crate::transport::{Controller, NOTHING, Tag, Tagged, Transport};
use hawser_control::Name;
use hawser_control::access::{
    Caller, Enrolment, IssuedToken, ListedEnrolment, NewEnrolment, NewToken, Token,
};
use hawser_control::answer::Page;
use hawser_control::audit::AuditEntry;
use hawser_control::node::Reported;
use hawser_control::resource::{Event, Flow, Node, Override, Path, Policy, Tenant};
use hawser_control::tunnel::Server;
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;

/// Items that are fetched at once.
const PAGE_ITEMS: u32 = 500;

type Result<T> = std::result::Result<T, Error>;

/// What an operator asks of a controller and tells it.
///
/// # Errors
/// Every method fails when no controller answers, or when it refuses: [`Error::Refused`] has its words.
#[derive(Debug)]
pub struct OperatorClient {
    transport: Transport,
}

impl OperatorClient {
    /// The first of the controllers that answers is asked. `authority_pem` is the certificate that theirs are signed by.
    pub fn new(controllers: &[Controller], authority_pem: &str, token: &str) -> Result<Self> {
        let tls = tls::trusting(authority_pem, Proof::None)?;
        Ok(OperatorClient {
            transport: Transport::new(controllers, tls, Some(token.trim().to_owned()))?,
        })
    }

    /// Whom the controller takes the bearer of the token for.
    pub async fn me(&self) -> Result<Caller> {
        self.get("/v1/me").await
    }

    /// All tenants.
    pub fn tenants(&self) -> Pages<'_, Tenant> {
        Pages::new(self, "/v1/tenants", None)
    }

    /// One tenant.
    pub async fn tenant(&self, tenant: &Name) -> Result<Tenant> {
        self.get(&format!("/v1/tenants/{tenant}")).await
    }

    /// Makes a tenant.
    pub async fn create_tenant(&self, tenant: &Tenant) -> Result<Tenant> {
        self.post("/v1/tenants", tenant).await
    }

    /// Removes a tenant that has neither nodes nor flows.
    pub async fn delete_tenant(&self, tenant: &Name) -> Result<()> {
        self.delete(&format!("/v1/tenants/{tenant}")).await
    }

    /// All nodes.
    pub fn nodes(&self) -> Pages<'_, Node> {
        Pages::new(self, "/v1/nodes", None)
    }

    /// One node.
    pub async fn node(&self, node: &Name) -> Result<Node> {
        self.get(&format!("/v1/nodes/{node}")).await
    }

    /// Revokes the node's certificate and forgets the node.
    pub async fn delete_node(&self, node: &Name) -> Result<()> {
        self.delete(&format!("/v1/nodes/{node}")).await
    }

    /// Makes a token that enrols the node once.
    pub async fn enrol_node(&self, node: &Name, enrolment: &NewEnrolment) -> Result<Enrolment> {
        self.post(&format!("/v1/nodes/{node}/enrolment"), enrolment)
            .await
    }

    /// All enrolment tokens that can be used or were, without their secrets.
    pub fn enrolments(&self) -> Pages<'_, ListedEnrolment> {
        Pages::new(self, "/v1/enrolments", None)
    }

    /// Makes an enrolment token void.
    pub async fn withdraw_enrolment(&self, node: &Name, id: &str) -> Result<()> {
        self.delete(&format!("/v1/nodes/{node}/enrolment/{}", escape(id)))
            .await
    }

    /// Revokes the node's certificate; it has to be enrolled again.
    pub async fn revoke_node(&self, node: &Name) -> Result<()> {
        self.delete(&format!("/v1/nodes/{node}/certificate")).await
    }

    /// All ends of paths.
    pub fn paths(&self) -> Pages<'_, Path> {
        Pages::new(self, "/v1/paths", None)
    }

    /// All servers of tunnels that live.
    pub fn tunnel_servers(&self) -> Pages<'_, Server> {
        Pages::new(self, "/v1/tunnel-servers", None)
    }

    /// All flows.
    pub fn flows(&self) -> Pages<'_, Flow> {
        Pages::new(self, "/v1/flows", None)
    }

    /// One flow.
    pub async fn flow(&self, flow: &Name) -> Result<Flow> {
        self.get(&format!("/v1/flows/{flow}")).await
    }

    /// Makes a flow.
    pub async fn create_flow(&self, flow: &Flow) -> Result<Flow> {
        self.post("/v1/flows", flow).await
    }

    /// One flow, to be changed.
    pub async fn tagged_flow(&self, flow: &Name) -> Result<Tagged<Flow>> {
        self.transport.tagged(&format!("/v1/flows/{flow}")).await
    }

    /// Replaces a flow, if it still has the tag that it was read with.
    pub async fn replace_flow(&self, flow: &Flow, tag: &Tag) -> Result<Flow> {
        self.transport
            .replace(&format!("/v1/flows/{}", flow.name), tag, flow)
            .await
    }

    /// Removes a flow.
    pub async fn delete_flow(&self, flow: &Name) -> Result<()> {
        self.delete(&format!("/v1/flows/{flow}")).await
    }

    /// What is in force for each flow.
    pub fn policies(&self) -> Pages<'_, Policy> {
        Pages::new(self, "/v1/policies", None)
    }

    /// What is in force for a flow.
    pub async fn policy(&self, flow: &Name) -> Result<Policy> {
        self.get(&format!("/v1/policies/{flow}")).await
    }

    /// Chooses the paths of a flow, until [`OperatorClient::release_policy`].
    pub async fn override_policy(&self, flow: &Name, choice: Override) -> Result<Policy> {
        self.put(&format!("/v1/policies/{flow}"), &choice).await
    }

    /// Leaves the paths of a flow to the controller again.
    pub async fn release_policy(&self, flow: &Name) -> Result<Policy> {
        self.transport
            .json(Method::DELETE, &format!("/v1/policies/{flow}"), NOTHING)
            .await
    }

    /// The latest report of each node.
    pub fn reports(&self) -> Pages<'_, Reported> {
        Pages::new(self, "/v1/reports", None)
    }

    /// The latest report of a node.
    pub async fn report(&self, node: &Name) -> Result<Reported> {
        self.get(&format!("/v1/reports/{node}")).await
    }

    /// What happened after the event of that number.
    pub fn events(&self, after: u64) -> Pages<'_, Event> {
        Pages::new(self, "/v1/events", Some(after.to_string()))
    }

    /// What happened after the event of that number, and then what happens; none: from now on.
    pub async fn follow_events(&self, after: Option<u64>) -> Result<EventStream> {
        let after = after.map_or_else(String::new, |number| format!("?after={number}"));
        let path = format!("/v1/events/stream{after}");
        let (response, controller) = self.transport.send(Method::GET, &path, NOTHING).await?;
        Ok(EventStream(Events::new(response, controller)))
    }

    /// Changes and their authors, after the entry of that number.
    pub fn audit(&self, after: u64) -> Pages<'_, AuditEntry> {
        Pages::new(self, "/v1/audit", Some(after.to_string()))
    }

    /// All operators' tokens.
    pub fn tokens(&self) -> Pages<'_, Token> {
        Pages::new(self, "/v1/tokens", None)
    }

    /// Makes a token; the answer is the only time that its secret is shown.
    pub async fn create_token(&self, token: &NewToken) -> Result<IssuedToken> {
        self.post("/v1/tokens", token).await
    }

    /// Makes a token void.
    pub async fn delete_token(&self, token: &Name) -> Result<()> {
        self.delete(&format!("/v1/tokens/{token}")).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.transport.json(Method::GET, path, NOTHING).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T> {
        self.transport.json(Method::POST, path, Some(body)).await
    }

    async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T> {
        self.transport.json(Method::PUT, path, Some(body)).await
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.transport.done(Method::DELETE, path, NOTHING).await
    }
}

/// A list, fetched page by page as it is read.
#[derive(Debug)]
pub struct Pages<'a, T> {
    client: &'a OperatorClient,
    path: &'static str,
    after: Option<String>,
    is_over: bool,
    item: PhantomData<T>,
}

impl<'a, T: DeserializeOwned> Pages<'a, T> {
    fn new(client: &'a OperatorClient, path: &'static str, after: Option<String>) -> Self {
        Pages {
            client,
            path,
            after,
            is_over: false,
            item: PhantomData,
        }
    }

    /// The next page; none after the last one.
    ///
    /// # Errors
    /// As every method of [`OperatorClient`].
    pub async fn next(&mut self) -> Result<Option<Vec<T>>> {
        if self.is_over {
            return Ok(None);
        }
        let after = self
            .after
            .take()
            .map_or_else(String::new, |after| format!("&after={}", escape(&after)));
        let page: Page<T> = self
            .client
            .get(&format!("{}?limit={PAGE_ITEMS}{after}", self.path))
            .await?;
        self.is_over = page.next.is_none();
        self.after = page.next;
        Ok(Some(page.items))
    }

    /// Everything that is left.
    ///
    /// # Errors
    /// As every method of [`OperatorClient`].
    pub async fn all(mut self) -> Result<Vec<T>> {
        let mut all = Vec::new();
        while let Some(page) = self.next().await? {
            all.extend(page);
        }
        Ok(all)
    }
}

/// What happens, as it happens.
pub struct EventStream(Events);

impl EventStream {
    /// The next event; none when the controller ended the stream.
    ///
    /// # Errors
    /// When the connection is lost, or the controller was silent for 45 s.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        while let Some(event) = self.0.next().await? {
            if event.event == "event" {
                return self.0.parse(&event).map(Some);
            }
        }
        Ok(None)
    }
}

/// For a query or a part of a path: letters, digits and dashes are themselves, other bytes are written in hexadecimal.
fn escape(text: &str) -> String {
    let escape = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_in_a_list_survives_the_query() {
        assert_eq!(escape("edge-1"), "edge-1");
        assert_eq!(escape("a/b &é"), "a%2Fb%20%26%C3%A9");
    }
}
