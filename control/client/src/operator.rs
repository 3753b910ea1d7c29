use crate::error::Error;
use crate::stream::Events;
use crate::tls::{self, Proof};
use crate::transport::{Controller, NOTHING, Tag, Tagged, Transport};
use hawser_model::Name;
use hawser_model::access::{
    Authorities, Caller, Enrolment, IssuedToken, ListedEnrolment, NewEnrolment, NewSecret,
    NewToken, Token,
};
use hawser_model::answer::{Page, Version};
use hawser_model::audit::AuditEntry;
use hawser_model::node::Reported;
use hawser_model::resource::{Event, Flow, Node, Override, Path, Policy, Tenant};
use hawser_model::status::FlowStatus;
use hawser_model::topology::Topology;
use hawser_model::track::{Track, TrackSource};
use hawser_model::tunnel::{Server, TunnelClient, TunnelSettings};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::marker::PhantomData;

/// Number of items per page.
const PAGE_ITEMS: u32 = 500;

type Result<T> = std::result::Result<T, Error>;

/// An operator's client of the controller.
///
/// # Errors
/// Every method fails if no controller answers or if it rejects the request: [`Error::Rejected`]
/// contains its explanation.
#[derive(Debug)]
pub struct OperatorClient {
    transport: Transport,
}

impl OperatorClient {
    /// Creates a client that uses the first of the controllers that answers. `authority_pem` is the
    /// certificate that signed theirs.
    pub fn new(controllers: &[Controller], authority_pem: &str, token: &str) -> Result<Self> {
        let tls = tls::trusting(authority_pem, Proof::None)?;
        Ok(OperatorClient {
            transport: Transport::new(controllers, tls, Some(token.trim().to_owned()))?,
        })
    }

    /// Returns the identity of the token's bearer as the controller sees it.
    pub async fn me(&self) -> Result<Caller> {
        self.get("/v1/me").await
    }

    /// Returns the authorities that the controller trusts.
    pub async fn authorities(&self) -> Result<Authorities> {
        self.get("/v1/authority").await
    }

    /// Returns the version of the controller and the name of the one that leads.
    pub async fn version(&self) -> Result<Version> {
        self.get("/v1/version").await
    }

    /// Lists all tenants.
    pub fn tenants(&self) -> Pages<'_, Tenant> {
        Pages::new(self, "/v1/tenants", None)
    }

    /// Returns one tenant.
    pub async fn tenant(&self, tenant: &Name) -> Result<Tenant> {
        self.get(&format!("/v1/tenants/{tenant}")).await
    }

    /// Creates a tenant.
    pub async fn create_tenant(&self, tenant: &Tenant) -> Result<Tenant> {
        self.create("/v1/tenants", tenant).await
    }

    /// Returns one tenant with its tag, for changing it.
    pub async fn tagged_tenant(&self, tenant: &Name) -> Result<Tagged<Tenant>> {
        self.transport
            .tagged(&format!("/v1/tenants/{tenant}"))
            .await
    }

    /// Changes the fields of a tenant that differ from `before`, if the tenant still has the tag
    /// that it was read with.
    pub async fn change_tenant(&self, before: &Tagged<Tenant>, tenant: &Tenant) -> Result<Tenant> {
        let path = format!("/v1/tenants/{}", tenant.name);
        self.change(&path, before, tenant).await
    }

    /// Deletes a tenant that has neither nodes nor flows.
    pub async fn delete_tenant(&self, tenant: &Name) -> Result<()> {
        self.delete(&format!("/v1/tenants/{tenant}")).await
    }

    /// Lists all nodes.
    pub fn nodes(&self) -> Pages<'_, Node> {
        Pages::new(self, "/v1/nodes", None)
    }

    /// Returns one node.
    pub async fn node(&self, node: &Name) -> Result<Node> {
        self.get(&format!("/v1/nodes/{node}")).await
    }

    /// Returns one node with its tag, for changing it.
    pub async fn tagged_node(&self, node: &Name) -> Result<Tagged<Node>> {
        self.transport.tagged(&format!("/v1/nodes/{node}")).await
    }

    /// Changes the fields of a node that differ from `before`, if the node still has the tag that it
    /// was read with.
    pub async fn change_node(&self, before: &Tagged<Node>, node: &Node) -> Result<Node> {
        let path = format!("/v1/nodes/{}", node.name);
        self.change(&path, before, node).await
    }

    /// Revokes the node's certificate and deletes the node.
    pub async fn delete_node(&self, node: &Name) -> Result<()> {
        self.delete(&format!("/v1/nodes/{node}")).await
    }

    /// Creates a token that enrols the node once.
    pub async fn enrol_node(&self, node: &Name, enrolment: &NewEnrolment) -> Result<Enrolment> {
        self.create(&format!("/v1/nodes/{node}/enrolment"), enrolment)
            .await
    }

    /// Lists all enrolment tokens that are valid or were used, without their secrets.
    pub fn enrolments(&self) -> Pages<'_, ListedEnrolment> {
        Pages::new(self, "/v1/enrolments", None)
    }

    /// Withdraws an enrolment token.
    pub async fn withdraw_enrolment(&self, node: &Name, id: &str) -> Result<()> {
        self.delete(&format!("/v1/nodes/{node}/enrolment/{}", escape(id)))
            .await
    }

    /// Revokes the node's certificate. The node must be enrolled again.
    pub async fn revoke_node(&self, node: &Name) -> Result<()> {
        self.delete(&format!("/v1/nodes/{node}/certificate")).await
    }

    /// Makes a node replace its key pair. Its flows continue.
    pub async fn rekey_node(&self, node: &Name) -> Result<()> {
        self.transport
            .done(Method::POST, &format!("/v1/nodes/{node}/rekey"), NOTHING)
            .await
    }

    /// Lists the endpoints of all paths.
    pub fn paths(&self) -> Pages<'_, Path> {
        Pages::new(self, "/v1/paths", None)
    }

    /// Returns the nodes and the paths between them: of a tenant, or of a node and its neighbours.
    pub async fn topology(&self, tenant: Option<&Name>, node: Option<&Name>) -> Result<Topology> {
        let filters = [("tenant", tenant), ("node", node)];
        let filters = filters
            .into_iter()
            .filter_map(|(key, name)| Some(format!("{key}={}", name?)));
        let filters: Vec<String> = filters.collect();
        self.get(&format!("/v1/topology?{}", filters.join("&")))
            .await
    }

    /// Lists all tunnel servers that are alive.
    pub fn tunnel_servers(&self) -> Pages<'_, Server> {
        Pages::new(self, "/v1/tunnel-servers", None)
    }

    /// Lists the tunnel clients, with their settings and what they have said of them.
    pub fn tunnel_clients(&self) -> Pages<'_, TunnelClient> {
        Pages::new(self, "/v1/tunnel-clients", None)
    }

    /// Returns the settings of a node as a tunnel client with their tag, for changing them. Without keys
    /// if there are none.
    pub async fn tagged_tunnel_settings(&self, node: &Name) -> Result<Tagged<TunnelSettings>> {
        self.transport.tagged(&settings_path(node)).await
    }

    /// Replaces the settings of a node as a tunnel client if they still have the tag that they were read
    /// with.
    pub async fn replace_tunnel_settings(
        &self,
        node: &Name,
        settings: &TunnelSettings,
        tag: &Tag,
    ) -> Result<TunnelSettings> {
        let path = settings_path(node);
        self.transport.replace(&path, tag, settings).await
    }

    /// Removes the settings of a node as a tunnel client.
    pub async fn delete_tunnel_settings(&self, node: &Name) -> Result<()> {
        self.delete(&settings_path(node)).await
    }

    /// Lists all flows.
    pub fn flows(&self) -> Pages<'_, Flow> {
        Pages::new(self, "/v1/flows", None)
    }

    /// Returns one flow.
    pub async fn flow(&self, flow: &Name) -> Result<Flow> {
        self.get(&format!("/v1/flows/{flow}")).await
    }

    /// Returns the status of a flow: whether it is protected, and the reasons.
    pub async fn flow_status(&self, flow: &Name) -> Result<FlowStatus> {
        self.get(&format!("/v1/flows/{flow}/status")).await
    }

    /// Creates a flow.
    pub async fn create_flow(&self, flow: &Flow) -> Result<Flow> {
        self.create("/v1/flows", flow).await
    }

    /// Returns one flow with its tag, for changing it.
    pub async fn tagged_flow(&self, flow: &Name) -> Result<Tagged<Flow>> {
        self.transport.tagged(&format!("/v1/flows/{flow}")).await
    }

    /// Changes the fields of a flow that differ from `before`, if the flow still has the tag that it
    /// was read with. Other fields stay.
    pub async fn change_flow(&self, before: &Tagged<Flow>, flow: &Flow) -> Result<Flow> {
        let path = format!("/v1/flows/{}", flow.name);
        self.change(&path, before, flow).await
    }

    /// Replaces a flow, if its tag is still the one that it was read with.
    pub async fn replace_flow(&self, flow: &Flow, tag: &Tag) -> Result<Flow> {
        self.transport
            .replace(&format!("/v1/flows/{}", flow.name), tag, flow)
            .await
    }

    /// Deletes a flow.
    pub async fn delete_flow(&self, flow: &Name) -> Result<()> {
        self.delete(&format!("/v1/flows/{flow}")).await
    }

    /// Lists all tracks.
    pub fn tracks(&self) -> Pages<'_, Track> {
        Pages::new(self, "/v1/tracks", None)
    }

    /// Returns one track.
    pub async fn track(&self, track: &Name) -> Result<Track> {
        self.get(&format!("/v1/tracks/{track}")).await
    }

    /// Creates a track.
    pub async fn create_track(&self, track: &Track) -> Result<Track> {
        self.create("/v1/tracks", track).await
    }

    /// Returns one track with its tag, for changing it.
    pub async fn tagged_track(&self, track: &Name) -> Result<Tagged<Track>> {
        self.transport.tagged(&format!("/v1/tracks/{track}")).await
    }

    /// Replaces a track, if its tag is still the one that it was read with.
    pub async fn replace_track(&self, track: &Track, tag: &Tag) -> Result<Track> {
        self.transport
            .replace(&format!("/v1/tracks/{}", track.name), tag, track)
            .await
    }

    /// Lists those who serve a track at present.
    pub async fn track_sources(&self, track: &Name) -> Result<Vec<TrackSource>> {
        let page: Page<TrackSource> = self.get(&format!("/v1/tracks/{track}/sources")).await?;
        Ok(page.items)
    }

    /// Replaces the secret of a track.
    pub async fn rekey_track(&self, track: &Name) -> Result<()> {
        self.transport
            .done(Method::POST, &format!("/v1/tracks/{track}/rekey"), NOTHING)
            .await
    }

    /// Deletes a track.
    pub async fn delete_track(&self, track: &Name) -> Result<()> {
        self.delete(&format!("/v1/tracks/{track}")).await
    }

    /// Lists the policies in force of all flows.
    pub fn policies(&self) -> Pages<'_, Policy> {
        Pages::new(self, "/v1/policies", None)
    }

    /// Returns the policy in force of a flow.
    pub async fn policy(&self, flow: &Name) -> Result<Policy> {
        self.get(&format!("/v1/policies/{flow}")).await
    }

    /// Sets the paths of a flow, until [`OperatorClient::release_policy`].
    pub async fn override_policy(&self, flow: &Name, choice: Override) -> Result<Policy> {
        self.put(&format!("/v1/policies/{flow}"), &choice).await
    }

    /// Returns the choice of a flow's paths to the controller.
    pub async fn release_policy(&self, flow: &Name) -> Result<Policy> {
        self.transport
            .json(Method::DELETE, &format!("/v1/policies/{flow}"), NOTHING)
            .await
    }

    /// Lists the latest report of each node.
    pub fn reports(&self) -> Pages<'_, Reported> {
        Pages::new(self, "/v1/reports", None)
    }

    /// Returns the latest report of a node.
    pub async fn report(&self, node: &Name) -> Result<Reported> {
        self.get(&format!("/v1/reports/{node}")).await
    }

    /// Lists the events after the one with the given number.
    pub fn events(&self, after: u64) -> Pages<'_, Event> {
        Pages::new(self, "/v1/events", Some(after.to_string()))
    }

    /// Streams the events after the one with the given number, including future ones; `None` starts
    /// with the next event.
    pub async fn follow_events(&self, after: Option<u64>) -> Result<EventStream> {
        let after = after.map_or_else(String::new, |number| format!("?after={number}"));
        let path = format!("/v1/events/stream{after}");
        let (response, controller) = self.transport.send(Method::GET, &path, NOTHING).await?;
        Ok(EventStream {
            events: Events::new(response, controller),
            position: None,
        })
    }

    /// Lists the entries of the audit log after the one with the given number.
    pub fn audit(&self, after: u64) -> Pages<'_, AuditEntry> {
        Pages::new(self, "/v1/audit", Some(after.to_string()))
    }

    /// Lists all operators' tokens.
    pub fn tokens(&self) -> Pages<'_, Token> {
        Pages::new(self, "/v1/tokens", None)
    }

    /// Creates a token. Its secret is shown only in this answer.
    pub async fn create_token(&self, token: &NewToken) -> Result<IssuedToken> {
        self.create("/v1/tokens", token).await
    }

    /// Replaces the secret of a token. The new one is shown only in this answer.
    pub async fn rotate_token(&self, token: &Name, new: &NewSecret) -> Result<IssuedToken> {
        // A repetition would end the validity of the secret before the lost one.
        let path = format!("/v1/tokens/{token}/secret");
        self.transport.json(Method::POST, &path, Some(new)).await
    }

    /// Revokes a token.
    pub async fn delete_token(&self, token: &Name) -> Result<()> {
        self.delete(&format!("/v1/tokens/{token}")).await
    }

    async fn change<T: Serialize + DeserializeOwned>(
        &self,
        path: &str,
        before: &Tagged<T>,
        now: &T,
    ) -> Result<T> {
        let [old, new] = [&before.value, now]
            .map(|value| serde_json::to_value(value).expect("resources have text for keys"));
        let patch = patch_between(&old, new);
        self.transport.patch(path, &before.tag, &patch).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.transport.json(Method::GET, path, NOTHING).await
    }

    async fn create<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T> {
        self.transport.create(path, body).await
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

/// Returns the merge patch (RFC 7396) that makes `new` of `old`. A field that is `null` is removed.
fn patch_between(old: &Value, new: Value) -> Value {
    let (Some(before), Value::Object(after)) = (old.as_object(), &new) else {
        return new;
    };
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    let mut patch: Map<String, Value> = gone.map(|key| (key.clone(), Value::Null)).collect();
    for (key, value) in after {
        match before.get(key) {
            Some(same) if same == value => {}
            Some(old) => drop(patch.insert(key.clone(), patch_between(old, value.clone()))),
            None => drop(patch.insert(key.clone(), value.clone())),
        }
    }
    Value::Object(patch)
}

fn settings_path(node: &Name) -> String {
    format!("/v1/nodes/{node}/tunnel-settings")
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

    /// Returns the next page; `None` after the last one.
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

    /// Returns all remaining items.
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

/// The stream of events.
pub struct EventStream {
    events: Events,
    position: Option<u64>,
}

impl EventStream {
    /// Returns the next event; `None` if the controller ended the stream.
    ///
    /// # Errors
    /// If the connection is lost, or the controller was silent for 45 s.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        while let Some(event) = self.events.next().await? {
            self.position = event.id.parse().ok().or(self.position);
            if event.event == "event" {
                return self.events.parse(&event).map(Some);
            }
        }
        Ok(None)
    }

    /// Returns the number after which to continue in another stream, which is also known when there was
    /// no event yet; `None` before anything was received.
    pub fn position(&self) -> Option<u64> {
        self.position
    }
}

/// Percent-encodes a text for a query or a path segment.
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
    use serde_json::json;

    #[test]
    fn a_mark_in_a_list_survives_the_query() {
        assert_eq!(escape("edge-1"), "edge-1");
        assert_eq!(escape("a/b &é"), "a%2Fb%20%26%C3%A9");
    }

    #[test]
    fn a_patch_has_only_the_fields_that_differ() {
        let old = json!({ "name": "f", "mode": "single", "select": { "to": "a", "port": 1 }, "trigger": { "ms": 1 } });
        for (new, patch) in [
            (old.clone(), json!({})),
            (
                json!({ "name": "f", "mode": "evidence", "select": { "to": "a", "port": 2 }, "trigger": null }),
                json!({ "mode": "evidence", "select": { "port": 2 }, "trigger": null }),
            ),
            (
                json!({ "name": "f", "mode": "single", "select": { "to": "a" }, "paths": [1] }),
                json!({ "select": { "port": null }, "trigger": null, "paths": [1] }),
            ),
        ] {
            assert_eq!(patch_between(&old, new), patch);
        }
    }
}
