"""The seeded generator of the banking-support business: vocabulary, dialogues, notes, applications, intents."""
