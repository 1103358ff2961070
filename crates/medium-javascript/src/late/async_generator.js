(async function* () {}).prototype;
