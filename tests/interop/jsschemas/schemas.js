// Registers, encodes and decodes with npm's client of a schema registry, and prints what came of it.
const { SchemaRegistry } = require('@kafkajs/confluent-schema-registry')

async function main (host, asked) {
  const registry = new SchemaRegistry({ host })
  const told = []
  for (const { type, schema, subject, value } of asked) {
    try {
      const { id } = await registry.register({ type, schema }, { subject })
      const body = await registry.encode(id, value)
      const latest = await registry.getLatestSchemaId(subject)
      told.push({ id, latest, body: body.toString('base64'), value: await registry.decode(body) })
    } catch (error) {
      told.push({ refused: error.message })
    }
  }
  console.log(JSON.stringify(told))
}

main(process.argv[2], JSON.parse(process.argv[3])).catch(error => {
  console.error(error)
  process.exit(1)
})
