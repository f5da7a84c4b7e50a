// Usage: node client.js HOST:PORT SANDBOX.proto HEALTH.proto
// Reads health, opens a session, streams a turn, repeats it, breaks a rule; prints one JSON object of what it saw.
"use strict";
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, sandboxProto, healthProto] = process.argv.slice(2);
const load = (file) => grpc.loadPackageDefinition(loader.loadSync(file, { longs: String, enums: String, defaults: true }));
const plaintext = grpc.credentials.createInsecure();
const sandbox = new (load(sandboxProto).evalkit.sandbox.v1.Sandbox)(address, plaintext);
const health = new (load(healthProto).grpc.health.v1.Health)(address, plaintext);
const deadline = () => ({ deadline: Date.now() + 30000 });

const call = (client, method, request) =>
  new Promise((resolve, reject) =>
    client[method](request, new grpc.Metadata(), deadline(), (error, reply) => (error ? reject(error) : resolve(reply))));

const stream = (request) =>
  new Promise((resolve, reject) => {
    const chunks = [];
    const metadata = new grpc.Metadata();
    metadata.set("x-request-id", "from-node");
    let requestId = null;
    const turn = sandbox.StreamTurn(request, metadata, deadline());
    turn.on("data", (chunk) => chunks.push(chunk));
    turn.on("status", (status) => (requestId = status.metadata.get("x-request-id")[0]));
    turn.on("error", reject);
    turn.on("end", () => setImmediate(() => resolve({ chunks, requestId })));
  });

(async () => {
  const { status } = await call(health, "Check", { service: "evalkit.sandbox.v1.Sandbox" });
  const described = await call(sandbox, "Describe", {});
  const { sessionId } = await call(sandbox, "OpenSession", { systemText: "be kind", locale: "en" });
  const request = { sessionId, turnId: "turn-1", userText: "您好, my card is lost", sampling: { maxNewTokens: 12 } };
  const { chunks, requestId } = await stream(request);
  const repeated = await call(sandbox, "Turn", request);
  const refused = await call(sandbox, "Turn", { ...request, turnId: "turn-2", userText: " " }).catch((error) => error);
  const closed = await call(sandbox, "CloseSession", { sessionId });
  const reply = chunks[chunks.length - 1].reply;
  console.log(JSON.stringify({
    health: status,
    modelDigest: described.modelDigest,
    pieces: chunks.length,
    joined: chunks.map((chunk) => chunk.text).join(""),
    tokenIds: chunks.flatMap((chunk) => chunk.tokenIds),
    text: reply.text,
    finishReason: reply.finishReason,
    state: reply.state,
    requestId,
    repeatedEqual: repeated.text === reply.text && repeated.turnIndex === reply.turnIndex,
    refused: { code: grpc.status[refused.code], details: refused.details },
    closed: closed.state,
  }));
  sandbox.close();
  health.close();
})().catch((error) => {
  console.error(String(error));
  process.exit(1);
});
